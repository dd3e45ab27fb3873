// The model view: every head of every layer as a small picture; choosing one opens it.

import { unpack } from "./numbers.js";
import { element, headColor } from "./drawing.js";

export class ModelView {
  static title = "Model";

  constructor(app) {
    this.app = app;
    this.element = element("div", { class: "grid", role: "group", "aria-label": "all heads of all layers" });
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  async draw() {
    if (this.thumbnails) return this.mark();
    this.thumbnails = await unpack(this.app.data.thumbnails);
    const [depth, heads, size] = this.thumbnails.shape;
    this.element.style.setProperty("--heads", heads);
    this.colors = Array.from({ length: heads }, (_, head) => rgb(headColor(head, heads)));
    for (let layer = 0; layer < depth; layer++) {
      this.element.append(element("span", { class: "number" }, `${layer + 1}`));
      for (let head = 0; head < heads; head++) this.element.append(this.button(layer, head, size));
    }
    this.mark();
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
    const kind = this.app.data.catalogue[layer * this.app.data.heads + head].kind.replace("_", " ");
    const name = `layer ${layer + 1}, head ${head + 1}: ${kind}`;
    const open = () => this.app.set({ layer, head, heads: new Set([head]), view: "heads" });
    const tell = () => this.app.say(name);
    return element(
      "button",
      { type: "button", title: name, "aria-label": name, "data-layer": layer, "data-head": head, onclick: open, onfocus: tell, onmouseenter: tell },
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
    this.app.say("Every row is a layer, every column a head; stronger color means more weight. Choose one to open it.");
  }

  move(event) {
    const heads = this.app.data.heads;
    const ways = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads, ArrowUp: -heads };
    if (!(event.key in ways)) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...this.element.querySelectorAll("button")];
    buttons[buttons.indexOf(document.activeElement) + ways[event.key]]?.focus();
  }
}

/** Any CSS color as its three bytes. */
function rgb(color) {
  const context = element("canvas", { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data.slice(0, 3);
}
