// The model view: every head of every layer as a thumbnail; clicking one opens it.

import { unpack } from "./numbers.js";
import { headCaption } from "./captions.js";
import { element, headColor } from "./drawing.js";

const MAX_SIZE = 96; // pixels of a thumbnail; with few heads, the layers stand in several columns, to fill the width
const NUMBER_WIDTH = 28; // pixels: the column with the layers' numbers

export class ModelView {
  static title = "Model";
  static needs = "heads";

  constructor(app) {
    this.app = app;
    this.element = element("div", { class: "grids", role: "group", "aria-label": "all heads of all layers" });
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  async draw() {
    this.thumbnails ??= await unpack(this.app.data.thumbnails);
    const [depth, heads, size] = this.thumbnails.shape;
    this.colors ??= Array.from({ length: heads }, (_, head) => rgb(headColor(head, heads)));
    this.rows ??= Array.from({ length: depth }, (_, layer) => this.row(layer, heads, size));
    const columns = Math.min(depth, Math.ceil(this.element.clientWidth / (NUMBER_WIDTH + heads * MAX_SIZE)) || 1);
    if (columns !== this.columns) this.arrange(columns, heads);
    this.mark();
  }

  row(layer, heads, size) {
    const buttons = Array.from({ length: heads }, (_, head) => this.button(layer, head, size));
    return [element("span", { class: "number" }, `${layer + 1}`), ...buttons];
  }

  /** The layers in this many columns; above each, the heads' numbers. */
  arrange(columns, heads) {
    this.columns = columns;
    const depth = Math.ceil(this.rows.length / columns);
    const starts = Array.from({ length: Math.ceil(this.rows.length / depth) }, (_, n) => n * depth);
    this.element.replaceChildren(
      ...starts.map((start) => {
        const numbers = Array.from({ length: heads }, (_, head) => element("span", { class: "number above" }, `${head + 1}`));
        const corner = element("span", { class: "number corner" }, "layer");
        const grid = element("div", { class: "grid" }, corner, ...numbers, ...this.rows.slice(start, start + depth).flat());
        grid.style.setProperty("--heads", heads);
        return grid;
      }),
    );
  }

  button(layer, head, size) {
    const canvas = element("canvas", { width: size, height: size, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    const image = context.createImageData(size, size);
    const start = (layer * this.app.data.heads + head) * size * size;
    for (let i = 0; i < size * size; i++) {
      image.data.set(this.colors[head], i * 4);
      image.data[i * 4 + 3] = this.thumbnails.values[start + i];
    }
    context.putImageData(image, 0, 0);
    const name = headCaption(this.app.data.catalogue[layer * this.app.data.heads + head], this.app.data.tokens.length);
    const open = () => this.app.set({ layer, head, heads: new Set([head]), view: "heads" });
    const describe = () => this.app.showStatus(name);
    return element(
      "button",
      { type: "button", title: name, "aria-label": name, "data-layer": layer, "data-head": head, onclick: open, onfocus: describe, onmouseenter: describe },
      canvas,
    );
  }

  mark() {
    const { layer, head } = this.app.state;
    for (const button of this.element.querySelectorAll("button")) {
      const chosen = +button.dataset.layer === layer && +button.dataset.head === head;
      button.tabIndex = chosen ? 0 : -1;
      button.toggleAttribute("aria-current", chosen);
    }
    this.app.showStatus("Each row is a layer, each column a head. In a head, rows are queries and columns keys; a stronger color is more weight. Click a head to open it.");
  }

  move(event) {
    const heads = this.app.data.heads;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads };
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...this.element.querySelectorAll("button")];
    buttons[buttons.indexOf(document.activeElement) + steps[event.key]]?.focus();
  }
}

/** The three bytes of a CSS color. */
function rgb(color) {
  const context = element("canvas", { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data.slice(0, 3);
}
