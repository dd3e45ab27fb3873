// The neuron view: how the query of one token and each key give a weight, neuron by neuron.

import { largestSize } from "./numbers.js";
import { headCaption, placed, quoted } from "./captions.js";
import { TokenView, element, number, prepare, strip, tokenText } from "./drawing.js";

export class NeuronView extends TokenView {
  static title = "Neurons";
  static needs = "heads";
  static controls = ["layer", "heads"];
  static oneHead = true;

  static caption({ state: { layer, head }, data }) {
    return headCaption(data.catalogue[layer * data.heads + head], data.tokens.length);
  }

  constructor(app) {
    super(app, 24, "keys and weights for the chosen token");
    this.queryStrip = element("canvas", { class: "query", "aria-hidden": "true" });
    this.names = ["token", "key", "q × k", "score", "softmax"].map((name) => element("span", { class: "name" }, name));
    this.list.heading.classList.add("tall");
    this.list.heading.append(...this.names, this.queryStrip);
  }

  draw(layer) {
    const head = this.app.state.head;
    this.token = this.app.state.token ?? this.app.firstToken;
    this.layer = layer;
    this.query = layer.query(head, this.token);
    this.weights = layer.row(head, this.token);
    this.mostKey = this.mostProduct = 1e-9;
    for (let token = 0; token < layer.length; token++) {
      this.mostKey = Math.max(this.mostKey, largestSize(layer.key(head, token)));
      this.mostProduct = Math.max(this.mostProduct, largestSize(this.products(token)));
    }
    this.list.chosen = this.token;
    this.list.draw();
    this.describe(null);
  }

  products(token) {
    const key = this.layer.key(this.app.state.head, token);
    return this.query.map((value, n) => value * key[n]);
  }

  /** Left edges and widths of the five columns. */
  columns(width) {
    const shares = width < 600 ? [0.2, 0.23, 0.23, 0.15, 0.19] : [0.16, 0.29, 0.29, 0.1, 0.16];
    let x = 0;
    return shares.map((share) => {
      const column = { x: x + 6, width: share * width - 12 };
      x += share * width;
      return column;
    });
  }

  paint(list) {
    const [token, key, product, score, weight] = (this.boxes = this.columns(list.width));
    this.drawHeading(list.width);
    const head = this.app.state.head;
    for (let row = list.first; row < list.last; row++) {
      const cell = element("div", { class: "cell left" }, tokenText(this.app.data.tokens[row]));
      if (row === this.token) cell.classList.add("chosen");
      list.put(cell, row, token.x - 6, token.width + 12);
      const box = { y: list.y(row) + 4, height: list.height - 8 };
      strip(list.context, this.layer.key(head, row), { ...box, ...key, most: this.mostKey });
      strip(list.context, this.products(row), { ...box, ...product, most: this.mostProduct });
      const attended = this.layer.sees(this.token, row);
      const scaled = this.layer.score(head, this.token, row) / this.layer.divisor;
      list.put(element("div", { class: "figure score" }, attended ? number(scaled, 2) : "–"), row, score.x, score.width);
      list.context.fillStyle = "rgb(35 110 235 / 0.3)";
      list.context.fillRect(weight.x, box.y, weight.width * this.weights[row], box.height);
      list.put(element("div", { class: "figure softmax" }, number(this.weights[row], 4)), row, weight.x, weight.width);
    }
  }

  /** The names of the columns and, above the keys, the query. */
  drawHeading(width) {
    this.names[3].textContent = `q·k ÷ ${this.divisor()}`;
    this.names[1].textContent = `key; above: query of ${quoted(this.app.data.tokens[this.token])}`;
    this.boxes.forEach((box, n) => Object.assign(this.names[n].style, { left: `${box.x}px`, width: `${box.width}px` }));
    const box = this.boxes[1];
    this.queryStrip.style.left = `${box.x}px`;
    const context = prepare(this.queryStrip, Math.max(Math.round(box.width), 1), 14);
    strip(context, this.query, { x: 0, y: 0, width: box.width, height: 14, most: Math.max(largestSize(this.query), 1e-9) });
    this.list.heading.style.width = `${width}px`;
  }

  /** The divisor as text: 8, or √32 if it is not a whole number. */
  divisor() {
    return Number.isInteger(this.layer.divisor) ? `${this.layer.divisor}` : `√${this.layer.width}`;
  }

  hover(row, event) {
    if (row === null) return this.describe(null);
    const x = event.clientX - this.list.stage.getBoundingClientRect().left;
    const box = [this.boxes[1], this.boxes[2]].find((box) => x >= box.x && x < box.x + box.width);
    if (!box) return this.describe(row);
    const neuron = Math.floor(((x - box.x) / box.width) * this.layer.width);
    const key = this.layer.key(this.app.state.head, row)[neuron];
    const query = this.query[neuron];
    this.app.showStatus(`neuron ${neuron}: q ${number(query, 4)} × k ${number(key, 4)} = ${number(query * key, 4)}`);
  }

  describe(row) {
    const { tokens } = this.app.data;
    if (row === null) return this.app.showStatus(`The query of ${placed(tokens[this.token], this.token)} times every key, number by number: blue above zero, orange below. Their sum is the score; softmax turns scores into weights.`);
    const score = this.layer.score(this.app.state.head, this.token, row);
    const scaled = score / this.layer.divisor;
    this.app.showStatus(
      `${quoted(tokens[this.token])} → ${quoted(tokens[row])}: q·k ${number(score, 4)} ÷ ${this.divisor()} = ${number(scaled, 4)}; softmax ${number(this.weights[row], 6)}`,
    );
  }
}
