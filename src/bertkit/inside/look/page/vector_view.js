// Token vectors across layers: how much each changes at every layer, and the cosines of one token between layers.

import { unpack } from "./numbers.js";
import { placed, quoted } from "./captions.js";
import { TokenView, element, legend, number, tokenText } from "./drawing.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const MIN_NUMBER_WIDTH = 20; // pixels of a column whose number is shown

export class VectorView extends TokenView {
  static title = "Vectors";
  static needs = "movement";

  constructor(app) {
    super(app, 22, "how much the vector of each token changes at every layer");
    this.numbers = element("div", { class: "numbers", "aria-hidden": "true" });
    this.list.heading.classList.add("tall");
    this.list.heading.append(element("span", {}, "change at each layer"), legend("1 − cosine:", 0, 1), this.numbers);
    this.matrix = element("figure", { class: "matrix" });
    this.element = element("div", { class: "side-by-side" }, this.list.stage, this.matrix);
  }

  async draw() {
    this.cosines ??= await unpack(this.app.data.movement.cosines);
    this.size = this.cosines.shape[1];
    this.token = this.app.state.token ?? this.app.firstToken;
    this.list.chosen = this.token;
    this.list.draw();
    this.drawMatrix();
    this.app.showStatus(
      "How much each layer changes the vector of each token: 0 keeps its direction, 1 turns it by a right angle. " +
        "Choose a token to compare its vectors of all layers; 0 is the embeddings.",
    );
  }

  cosine(token, one, other) {
    return this.cosines.values[(token * this.size + one) * this.size + other];
  }

  paint(list) {
    this.edge = Math.min(160, list.width * 0.4);
    this.cell = (list.width - this.edge - 8) / (this.size - 1);
    this.numberColumns();
    for (let row = list.first; row < list.last; row++) {
      const cell = element("div", { class: "cell left" }, tokenText(this.app.data.tokens[row]));
      if (row === this.token) cell.classList.add("chosen");
      list.put(cell, row, 0, this.edge);
      for (let layer = 1; layer < this.size; layer++) {
        const change = 1 - this.cosine(row, layer, layer - 1);
        list.context.fillStyle = `rgb(35 110 235 / ${Math.min(1, change)})`;
        list.context.fillRect(this.edge + (layer - 1) * this.cell, list.y(row) + 3, this.cell - 1, list.height - 6);
      }
    }
  }

  /** The layer above each column; of narrow columns, above some. */
  numberColumns() {
    const every = Math.max(1, Math.ceil(MIN_NUMBER_WIDTH / this.cell));
    const shown = Array.from({ length: this.size - 1 }, (_, n) => n + 1).filter((layer) => layer % every === 0);
    this.numbers.replaceChildren(
      ...shown.map((layer) => {
        const node = element("span", {}, `${layer}`);
        Object.assign(node.style, { left: `${this.edge + (layer - 0.5) * this.cell}px` });
        return node;
      }),
    );
  }

  hover(row, event) {
    if (row === null) return;
    const x = event.clientX - this.list.stage.getBoundingClientRect().left - this.edge;
    const layer = Math.floor(x / this.cell) + 1;
    if (layer < 1 || layer >= this.size) return;
    const between = number(this.app.data.movement.likeness[layer], 3);
    this.app.showStatus(
      `${placed(this.app.data.tokens[row], row)}: cosine between layers ${layer - 1} and ${layer} ${number(this.cosine(row, layer, layer - 1), 4)}; ` +
        `between two different tokens at layer ${layer}, on average ${between}`,
    );
  }

  /** The cosines between all layers for one token. */
  drawMatrix() {
    const drawing = document.createElementNS(NAMESPACE, "svg");
    const unit = 20;
    drawing.setAttribute("viewBox", `0 0 ${(this.size + 1) * unit} ${(this.size + 1) * unit}`);
    drawing.style.maxWidth = `${Math.min(460, (this.size + 1) * 36)}px`;
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", "cosines between the layers");
    for (let one = 0; one < this.size; one++) {
      drawing.append(label(one, (one + 1.5) * unit, 0.7 * unit), label(one, 0.5 * unit, (one + 1.7) * unit));
      for (let other = 0; other < this.size; other++) drawing.append(this.square(one, other, unit));
    }
    const token = quoted(this.app.data.tokens[this.token]);
    const caption = element("figcaption", {}, element("span", {}, "cosine between the layers of ", element("bdi", {}, token)), legend("", -1, 1));
    this.matrix.replaceChildren(caption, drawing);
  }

  square(one, other, unit) {
    const value = this.cosine(this.token, one, other);
    const cell = svg("rect", { x: (other + 1) * unit, y: (one + 1) * unit, width: unit - 1, height: unit - 1 });
    cell.setAttribute("fill", value >= 0 ? "rgb(35 110 235)" : "rgb(240 125 20)");
    cell.setAttribute("fill-opacity", Math.min(1, Math.abs(value)));
    const title = svg("title", {});
    title.textContent = `layers ${one} and ${other}: ${number(value, 4)}`;
    cell.append(title);
    cell.addEventListener("mouseenter", () => this.app.showStatus(title.textContent));
    return cell;
  }
}

function svg(tag, attributes) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function label(text, x, y) {
  const node = svg("text", { x, y, "text-anchor": "middle", "font-size": 10 });
  node.textContent = text;
  return node;
}
