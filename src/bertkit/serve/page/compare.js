// Similarities of sentences: every one with every other as a heat map, and all of them on a two-dimensional map.

import { element, number } from "../inside/drawing.js";
import { pointMap } from "./map.js";
import { lines, short } from "./parts.js";
import { FOR_SENTENCES, cosine, vectors } from "./vectors.js";

const MAX_SENTENCES = 300; // on the map
const MAX_CELLS = 40; // sentences of the heat map; of more only the map is shown
const MAX_WITH_NUMBERS = 10; // sentences up to which each cell shows its value

export const compare = {
  name: "compare",
  title: "Compare",
  ...FOR_SENTENCES,
  lead: "How similar sentences are in meaning, every one with every other: the cosine of their embeddings.",
  needs: "an encoder",
  fields: [{ name: "texts", label: "Sentences, one on each line", rows: 6, lines: true, hint: "type two sentences or more, one on each line" }],
  examples: [
    {
      title: "Pets, money, weather",
      texts:
        "The cat sleeps on the sofa.\nA kitten naps on the couch.\nThe dog barks at the mailman.\n" +
        "The bank raised interest rates.\nLoans have become more expensive.\nIt rained all weekend.",
    },
    {
      title: "One word, two senses",
      texts:
        "She sat on the bank of the river.\nHe paid the money in at the bank.\n" +
        "The river burst its banks.\nThe bank lends to small firms.",
    },
    { title: "Word order", texts: "The dog bit the man.\nThe man bit the dog.\nThe man was bitten by the dog." },
  ],
  missing: ({ texts }) => {
    const count = lines(texts).length;
    if (count < 2) return "Type two sentences or more, one on each line.";
    return count > MAX_SENTENCES ? `These are ${count} sentences; the page compares ${MAX_SENTENCES}. Leave some out, or use the search.` : null;
  },
  ask: async ({ texts }, model, send, notify) => vectors(lines(texts), model, send, notify),
  draw: (embeddings, { texts }, panel) => {
    const all = lines(texts);
    const say = (text) => panel.say(text);
    const heat = new HeatMap(all, embeddings, say);
    const scale = element("p", { class: "scale" }, `${number(heat.minimum, 2)} `, element("span", {}), " 1.00");
    const cells = all.length > MAX_CELLS ? [] : [heat.draw(), scale];
    return { nodes: [...cells, pointMap(all, embeddings, say)], summary: heat.closest() };
  },
};

class HeatMap {
  constructor(texts, embeddings, say) {
    Object.assign(this, { texts, say, marked: [0, 1] });
    this.values = embeddings.map((one) => embeddings.map((other) => cosine(one, other)));
    this.minimum = this.values.reduce((least, row) => Math.min(least, ...row), 1); // colors go from it to 1
  }

  draw() {
    const { texts } = this;
    this.cells = texts.map((_, row) => texts.map((__, column) => this.cell(row, column)));
    const names = texts.map((text, row) => element("th", { scope: "row", title: text }, ...this.name(row)));
    const rows = names.map((name, row) => element("tr", {}, name, ...this.cells[row]));
    const numbers = texts.map((text, n) => element("th", { scope: "col", title: text }, `${n + 1}`));
    const head = element("thead", {}, element("tr", {}, element("td", {}), ...numbers));
    const table = element("table", {}, head, element("tbody", {}, ...rows));
    const name = "heat map; the arrow keys go from cell to cell";
    return element("div", { class: "heat", tabindex: "0", role: "region", "aria-label": name, onkeydown: (event) => this.move(event) }, table);
  }

  name(row) {
    return [element("span", { class: "figure" }, `${row + 1} `), element("bdi", {}, short(this.texts[row], 48))];
  }

  cell(row, column) {
    const value = this.values[row][column];
    const shown = this.texts.length <= MAX_WITH_NUMBERS ? number(value, 2) : "";
    const cell = element("td", { title: this.sentence(row, column), onmouseenter: () => this.mark(row, column) }, shown);
    cell.style.setProperty("--share", (value - this.minimum) / Math.max(1 - this.minimum, 1e-6));
    return cell;
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
    const [oldRow, oldColumn] = this.marked;
    this.cells[oldRow][oldColumn].classList.remove("chosen");
    this.cells[row][column].classList.add("chosen");
    this.marked = [row, column];
    this.say(this.sentence(row, column));
  }

  move(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const last = this.texts.length - 1;
    const [row, column] = this.marked.map((index, axis) => Math.max(0, Math.min(last, index + step[axis])));
    this.mark(row, column);
    this.cells[row][column].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
