// What the model would fill at each layer: its masked-word head, read early.

import { unpack } from "./numbers.js";
import { TokenView, element, number, tokenText } from "./drawing.js";

const COLUMN = 84;

export class FillView extends TokenView {
  static title = "Fills";
  static needs = "lens";

  constructor(app) {
    super(app, 24, "the best word for each token at every layer");
  }

  async draw() {
    this.best ??= await unpack(this.app.data.lens.best);
    this.probabilities ??= await unpack(this.app.data.lens.probabilities);
    [, this.size, this.top] = this.best.shape;
    const across = (this.size + 1) * COLUMN;
    this.list.body.style.width = this.list.heading.style.width = `${across}px`;
    const names = Array.from({ length: this.size }, (_, layer) => (layer ? `layer ${layer}` : "embeddings"));
    this.list.heading.classList.add("columns");
    this.list.heading.replaceChildren(...["token", ...names].map((name) => element("span", {}, name)));
    this.list.chosen = this.app.state.token;
    this.list.draw();
    this.app.say("The word that the masked-word head would read off each layer; stronger color, more probable.");
  }

  candidates(token, layer) {
    const start = (token * this.size + layer) * this.top;
    return Array.from({ length: this.top }, (_, n) => ({
      word: this.app.data.lens.words[this.best.values[start + n]],
      probability: this.probabilities.values[start + n],
    }));
  }

  paint(list) {
    const { tokens } = this.app.data;
    for (let row = list.first; row < list.last; row++) {
      const name = element("div", { class: "cell left fixed" }, tokenText(tokens[row]));
      if (row === this.app.state.token) name.classList.add("chosen");
      list.place(name, row, list.stage.scrollLeft, COLUMN); // stays in sight when the layers move sideways
      for (let layer = 0; layer < this.size; layer++) {
        const [{ word, probability }] = this.candidates(row, layer);
        const cell = element("div", { class: "cell fill" }, tokenText(word));
        if (word === tokens[row]) cell.classList.add("same");
        cell.style.setProperty("--shade", probability);
        list.place(cell, row, (layer + 1) * COLUMN, COLUMN);
      }
    }
  }

  choose(place, event) {
    if (place === null) return;
    this.app.set({ token: place }).then(() => this.hover(place, event));
  }

  hover(place, event) {
    if (place === null) return;
    const left = this.list.body.getBoundingClientRect().left;
    const pointed = event.clientX === undefined ? this.size - 1 : Math.floor((event.clientX - left) / COLUMN) - 1;
    const layer = Math.max(0, Math.min(this.size - 1, pointed));
    const told = this.candidates(place, layer).map(({ word, probability }) => `${word} ${number(probability)}`);
    this.app.say(`${this.app.data.tokens[place]} at ${layer ? `layer ${layer}` : "the embeddings"}: ${told.join(",  ")}`);
  }
}
