// How alike sentences are: every one with every other, as a heat map.

import { element, number } from "../inside/drawing.js";
import { lines, short } from "./parts.js";
import { FOR_SENTENCES, cosine, vectors } from "./vectors.js";

const MOST = 40; // sentences; more are not told apart on a screen
const WITH_NUMBERS = 10; // up to so many, each cell has its number

export const compare = {
  name: "compare",
  title: "Compare",
  ...FOR_SENTENCES,
  lead: "How alike sentences are in meaning, every one with every other: the cosine of their vectors.",
  needs: "It compares sentences, with any encoder.",
  fields: [{ name: "texts", label: "Sentences, one on each line", rows: 6, wanted: "type two sentences or more, one on each line" }],
  examples: [
    {
      called: "Pets, money, weather",
      texts:
        "The cat sleeps on the sofa.\nA kitten naps on the couch.\nThe dog barks at the mailman.\n" +
        "The bank raised interest rates.\nLoans have become more expensive.\nIt rained all weekend.",
    },
    {
      called: "One word, two senses",
      texts:
        "She sat on the bank of the river.\nHe paid the money in at the bank.\n" +
        "The river burst its banks.\nThe bank lends to small firms.",
    },
    { called: "Word order", texts: "The dog bit the man.\nThe man bit the dog.\nThe man was bitten by the dog." },
  ],
  wanting: ({ texts }) => {
    const count = lines(texts).length;
    if (count < 2) return "Type two sentences or more, one on each line.";
    return count > MOST ? `These are ${count} sentences; a map shows ${MOST}. Leave some out, or use the search.` : null;
  },
  ask: async ({ texts }, model, send, tell) => vectors(lines(texts), model, send, tell),
  draw: (found, { texts }, panel) => {
    const map = new HeatMap(lines(texts), found, (text) => panel.say(text));
    const scale = element("p", { class: "scale" }, `${number(map.least, 2)} `, element("span", {}), " 1.00");
    return { nodes: [map.element, scale], said: map.closest() };
  },
};

class HeatMap {
  constructor(texts, found, say) {
    Object.assign(this, { texts, say, at: [0, 1] });
    this.values = found.map((one) => found.map((other) => cosine(one, other)));
    this.least = Math.min(...this.values.flat()); // colors go from the least alike to the same
    this.cells = texts.map((_, row) => texts.map((__, column) => this.cell(row, column)));
    const names = texts.map((text, row) => element("th", { scope: "row", title: text }, ...this.name(row)));
    const rows = names.map((name, row) => element("tr", {}, name, ...this.cells[row]));
    const numbers = texts.map((text, n) => element("th", { scope: "col", title: text }, `${n + 1}`));
    const head = element("thead", {}, element("tr", {}, element("td", {}), ...numbers));
    const table = element("table", {}, head, element("tbody", {}, ...rows));
    this.element = element(
      "div",
      { class: "heat", tabindex: "0", role: "region", "aria-label": "heat map; the arrow keys go from cell to cell" },
      table,
    );
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  name(row) {
    return [element("span", { class: "figure" }, `${row + 1} `), element("bdi", {}, short(this.texts[row], 48))];
  }

  cell(row, column) {
    const value = this.values[row][column];
    const shown = this.texts.length <= WITH_NUMBERS ? number(value, 2) : "";
    const made = element("td", { title: this.sentence(row, column), onmouseenter: () => this.mark(row, column) }, shown);
    made.style.setProperty("--share", (value - this.least) / Math.max(1 - this.least, 1e-6));
    return made;
  }

  sentence(row, column) {
    return `${number(this.values[row][column], 3)}: “${short(this.texts[row])}” and “${short(this.texts[column])}”`;
  }

  closest() {
    let best = [0, 1];
    for (let row = 0; row < this.texts.length; row++) {
      for (let column = row + 1; column < this.texts.length; column++) {
        if (this.values[row][column] > this.values[best[0]][best[1]]) best = [row, column];
      }
    }
    return `Closest, ${this.sentence(...best)}`;
  }

  mark(row, column) {
    const [was, there] = this.at;
    this.cells[was][there].classList.remove("chosen");
    this.cells[row][column].classList.add("chosen");
    this.at = [row, column];
    this.say(this.sentence(row, column));
  }

  move(event) {
    const way = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!way) return;
    event.preventDefault();
    const last = this.texts.length - 1;
    const [row, column] = this.at.map((place, n) => Math.max(0, Math.min(last, place + way[n])));
    this.mark(row, column);
    this.cells[row][column].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
