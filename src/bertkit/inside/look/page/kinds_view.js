// The table of all heads: what each head mostly attends to in this text, how broadly and how far.

import { headName, kindName, spread } from "./captions.js";
import { element, headColor, number } from "./drawing.js";

const SHARES = ["next", "previous", "itself", "first", "separator", "same_word"];
const COLUMNS = {
  layer: "layer", head: "head", kind: "looks at", ...Object.fromEntries(SHARES.map((name) => [name, kindName(name)])),
  entropy: "spread", distance: "distance",
};

export class KindsView {
  static title = "All heads";
  static needs = "heads";

  constructor(app) {
    this.app = app;
    this.sortedBy = "layer";
    this.descending = false;
    this.element = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "all heads" });
  }

  draw() {
    this.app.showStatus("What each head looks at in this text, and the share of a word's attention that goes to it, averaged over all words. Spread: over how many tokens; distance: how many tokens away. Click a heading to sort, a head to open it.");
    const heads = Object.entries(COLUMNS).map(([name, shown]) => this.heading(name, shown));
    const rows = [...this.app.data.catalogue].sort((one, other) => this.compare(one, other)).map((row) => this.row(row));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
    this.element.replaceChildren(table);
  }

  compare(one, other) {
    const [a, b] = [one[this.sortedBy], other[this.sortedBy]];
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return (this.descending ? -order : order) || one.layer - other.layer || one.head - other.head;
  }

  heading(name, shown) {
    const sorted = name === this.sortedBy ? (this.descending ? "descending" : "ascending") : "none";
    const sort = () => {
      this.descending = name === this.sortedBy ? !this.descending : typeof this.app.data.catalogue[0][name] === "number";
      this.sortedBy = name;
      this.draw();
      this.element.querySelector(`[data-name="${name}"]`).focus();
    };
    const button = element("button", { type: "button", "data-name": name, onclick: sort }, shown);
    return element("th", { scope: "col", "aria-sort": sorted }, button);
  }

  row(row) {
    const open = () => this.app.set({ layer: row.layer - 1, head: row.head - 1, heads: new Set([row.head - 1]), view: "heads" });
    const cells = Object.keys(COLUMNS).map((name) => this.cell(row, name));
    const name = element("button", { type: "button", class: "plain", onclick: open, "aria-label": `open ${headName(row)}` }, `${row.head}`);
    name.style.setProperty("--color", headColor(row.head - 1, this.app.data.heads));
    cells[1].replaceChildren(name);
    return element("tr", {}, ...cells);
  }

  cell(row, name) {
    const value = row[name];
    if (name === "layer" || name === "head") return element("td", {}, `${value}`);
    if (typeof value === "string") return element("td", { class: "kind" }, kindName(value));
    if (!SHARES.includes(name)) return element("td", {}, number(name === "entropy" ? spread(row) : value, 1));
    const cell = element("td", {}, `${Math.round(100 * value)} %`);
    cell.style.setProperty("--shade", Math.min(1, value));
    return cell;
  }
}
