// The words that the masked-word head predicts from each layer (logit lens).

import { unpack } from "./numbers.js";
import { placed, quoted } from "./captions.js";
import { TokenView, element, number, tokenText } from "./drawing.js";

const COLUMN_WIDTH = 84;

export class FillView extends TokenView {
  static title = "Predictions";
  static needs = "lens";

  constructor(app) {
    super(app, 24, "the best word for each token at every layer");
  }

  async draw() {
    this.best ??= await unpack(this.app.data.lens.best);
    this.probabilities ??= await unpack(this.app.data.lens.probabilities);
    [, this.size, this.top] = this.best.shape;
    this.list.body.style.width = this.list.heading.style.width = `${(this.size + 1) * COLUMN_WIDTH}px`;
    const names = Array.from({ length: this.size }, (_, layer) => (layer ? `layer ${layer}` : "embeddings"));
    this.list.heading.classList.add("columns");
    this.list.heading.replaceChildren(...["token", ...names].map((name) => element("span", {}, name)));
    this.list.chosen = this.app.state.token;
    this.list.draw();
    this.app.showStatus("The word that the masked-word head predicts for each token from each layer; in bold, the token itself. Point at a word for its probability.");
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
      list.put(name, row, list.stage.scrollLeft, COLUMN_WIDTH); // stays visible when the layers scroll sideways
      for (let layer = 0; layer < this.size; layer++) {
        const [{ word, probability }] = this.candidates(row, layer);
        const cell = element("div", { class: "cell fill" }, tokenText(word));
        if (word === tokens[row]) cell.classList.add("same");
        cell.style.setProperty("--shade", probability);
        list.put(cell, row, (layer + 1) * COLUMN_WIDTH, COLUMN_WIDTH);
      }
    }
  }

  choose(row, event) {
    if (row === null) return;
    this.app.set({ token: row }).then(() => this.hover(row, event));
  }

  hover(row, event) {
    if (row === null) return;
    const left = this.list.body.getBoundingClientRect().left;
    const column = event.clientX === undefined ? this.size - 1 : Math.floor((event.clientX - left) / COLUMN_WIDTH) - 1;
    const layer = Math.max(0, Math.min(this.size - 1, column));
    const words = this.candidates(row, layer).map(({ word, probability }) => `${quoted(word)} ${number(probability)}`);
    this.app.showStatus(`${placed(this.app.data.tokens[row], row)} at ${layer ? `layer ${layer}` : "the embeddings"}: ${words.join(",  ")}`);
  }
}
