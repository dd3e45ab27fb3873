// Token vectors across layers: how far each turns at every layer, and one token's cosines between any two layers.

import { unpack } from "./numbers.js";
import { TokenView, element, number, tokenText } from "./drawing.js";

const NAMESPACE = "http://www.w3.org/2000/svg";

export class VectorView extends TokenView {
  static title = "Vectors";
  static needs = "movement";

  constructor(app) {
    super(app, 22, "how far each token's vector turns at every layer");
    this.list.heading.append(element("span", {}, "turn at each layer: stronger color is farther"));
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
    this.app.say("Each token's vector, from the embeddings (0) to the last layer. Choose a token for its cosines.");
  }

  cosine(token, one, other) {
    return this.cosines.values[(token * this.size + one) * this.size + other];
  }

  paint(list) {
    this.edge = Math.min(160, list.width * 0.4);
    this.cell = (list.width - this.edge - 8) / (this.size - 1);
    for (let row = list.first; row < list.last; row++) {
      const cell = element("div", { class: "cell left" }, tokenText(this.app.data.tokens[row]));
      if (row === this.token) cell.classList.add("chosen");
      list.place(cell, row, 0, this.edge);
      for (let layer = 1; layer < this.size; layer++) {
        const turn = 1 - this.cosine(row, layer, layer - 1);
        list.context.fillStyle = `rgb(35 110 235 / ${Math.min(1, turn)})`;
        list.context.fillRect(this.edge + (layer - 1) * this.cell, list.y(row) + 3, this.cell - 1, list.height - 6);
      }
    }
  }

  hover(place, event) {
    if (place === null) return;
    const x = event.clientX - this.list.stage.getBoundingClientRect().left - this.edge;
    const layer = Math.floor(x / this.cell) + 1;
    if (layer < 1 || layer >= this.size) return;
    const like = number(this.app.data.movement.likeness[layer], 3);
    this.app.say(
      `${this.app.data.tokens[place]}: layer ${layer} with the one below, cosine ${number(this.cosine(place, layer, layer - 1), 4)}; ` +
        `two different tokens at layer ${layer}, on average ${like}`,
    );
  }

  /** One token's vectors, every layer against every other. */
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
    const caption = element("figcaption", {}, "cosine between layers of ", tokenText(this.app.data.tokens[this.token]));
    this.matrix.replaceChildren(caption, drawing);
  }

  square(one, other, unit) {
    const value = this.cosine(this.token, one, other);
    const made = svg("rect", { x: (other + 1) * unit, y: (one + 1) * unit, width: unit - 1, height: unit - 1 });
    made.setAttribute("fill", value >= 0 ? "rgb(35 110 235)" : "rgb(240 125 20)");
    made.setAttribute("fill-opacity", Math.min(1, Math.abs(value)));
    const title = svg("title", {});
    title.textContent = `layers ${one} and ${other}: ${number(value, 4)}`;
    made.append(title);
    made.addEventListener("mouseenter", () => this.app.say(title.textContent));
    return made;
  }
}

function svg(tag, attributes) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function label(text, x, y) {
  const made = svg("text", { x, y, "text-anchor": "middle", "font-size": 10 });
  made.textContent = text;
  return made;
}
