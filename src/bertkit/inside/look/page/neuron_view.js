// The neuron view: how one token's query meets every key, number by number, and becomes a weight.

import { largestSize } from "./numbers.js";
import { TokenView, element, number, prepare, strip, tokenText } from "./drawing.js";

export class NeuronView extends TokenView {
  static title = "Neurons";
  static controls = ["layer", "heads"];
  static oneHead = true;

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
    for (let place = 0; place < layer.length; place++) {
      this.mostKey = Math.max(this.mostKey, largestSize(layer.key(head, place)));
      this.mostProduct = Math.max(this.mostProduct, largestSize(this.products(place)));
    }
    this.list.chosen = this.token;
    this.list.draw();
    this.tell(null);
  }

  products(place) {
    const key = this.layer.key(this.app.state.head, place);
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
    const [token, key, product, score, weight] = (this.places = this.columns(list.width));
    this.head(list.width);
    const head = this.app.state.head;
    for (let row = list.first; row < list.last; row++) {
      const cell = element("div", { class: "cell left" }, tokenText(this.app.data.tokens[row]));
      if (row === this.token) cell.classList.add("chosen");
      list.place(cell, row, token.x - 6, token.width + 12);
      const box = { y: list.y(row) + 4, height: list.height - 8 };
      strip(list.context, this.layer.key(head, row), { ...box, ...key, most: this.mostKey });
      strip(list.context, this.products(row), { ...box, ...product, most: this.mostProduct });
      const seen = this.layer.sees(this.token, row);
      const scaled = this.layer.score(head, this.token, row) / this.layer.divisor;
      list.place(element("div", { class: "figure score" }, seen ? number(scaled, 2) : "–"), row, score.x, score.width);
      list.context.fillStyle = "rgb(35 110 235 / 0.3)";
      list.context.fillRect(weight.x, box.y, weight.width * this.weights[row], box.height);
      list.place(element("div", { class: "figure softmax" }, number(this.weights[row], 4)), row, weight.x, weight.width);
    }
  }

  /** The names of the columns and, above the keys, the query that meets them. */
  head(width) {
    this.names[3].textContent = `q·k ÷ ${this.divisor()}`;
    this.names[1].textContent = `key; above it, the query of ${this.app.data.tokens[this.token]}`;
    this.places.forEach(({ x, width: wide }, n) => Object.assign(this.names[n].style, { left: `${x}px`, width: `${wide}px` }));
    const { x, width: wide } = this.places[1];
    this.queryStrip.style.left = `${x}px`;
    const context = prepare(this.queryStrip, Math.max(Math.round(wide), 1), 14);
    strip(context, this.query, { x: 0, y: 0, width: wide, height: 14, most: Math.max(largestSize(this.query), 1e-9) });
    this.list.heading.style.width = `${width}px`;
  }

  /** 8 where it is 8, √32 where it is not a whole number. */
  divisor() {
    return Number.isInteger(this.layer.divisor) ? `${this.layer.divisor}` : `√${this.layer.width}`;
  }

  hover(place, event) {
    if (place === null) return this.tell(null);
    const x = event.clientX - this.list.stage.getBoundingClientRect().left;
    const column = [1, 2].find((n) => x >= this.places[n].x && x < this.places[n].x + this.places[n].width);
    if (!column) return this.tell(place);
    const neuron = Math.floor(((x - this.places[column].x) / this.places[column].width) * this.layer.width);
    const key = this.layer.key(this.app.state.head, place)[neuron];
    const query = this.query[neuron];
    this.app.say(`neuron ${neuron}: q ${number(query, 4)} × k ${number(key, 4)} = ${number(query * key, 4)}`);
  }

  tell(place) {
    const { tokens } = this.app.data;
    if (place === null) return this.app.say(`The query of ${tokens[this.token]} (${this.token}) against every key: blue above zero, orange below.`);
    const score = this.layer.score(this.app.state.head, this.token, place);
    const scaled = score / this.layer.divisor;
    this.app.say(
      `${tokens[this.token]} → ${tokens[place]}: q·k ${number(score, 4)} ÷ ${this.divisor()} = ${number(scaled, 4)}; softmax ${number(this.weights[place], 6)}`,
    );
  }
}
