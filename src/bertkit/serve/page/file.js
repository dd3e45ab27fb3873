// Predictions for a whole file: a CSV is read here, its rows are sent in batches, the result can be downloaded.

import { element, number } from "../inside/drawing.js";
import { parseTable, writeTable } from "./csv.js";
import { errorBox } from "./trouble.js";

const ROWS_PER_REQUEST = 64;
const MAX_BYTES = 20e6;
const MAX_ROWS = 50_000;
const SHOWN_ROWS = 50;

export class FilePredictions {
  /** `tool.table` says which columns are read, what is asked and what the reply becomes; `ask(path, body)` asks. */
  constructor(tool, ask) {
    Object.assign(this, { table: tool.table, name: tool.name, ask, generation: 0 });
    this.input = element("input", { type: "file", accept: ".csv,.tsv,.txt,text/csv", "aria-label": "CSV file", onchange: () => this.open() });
    this.input.onclick = () => { this.input.value = ""; }; // so that the same file can be chosen again after a change
    this.form = element("div", {});
    this.status = element("p", { class: "said", role: "status" });
    this.result = element("div", {});
    const hint = element("p", { class: "fine" }, "A CSV or TSV file with a header, or a .txt file with a text on each line. It is sent to this server only.");
    this.element = element("details", { class: "file" }, element("summary", {}, "Predict a file"), hint, this.input, this.form, this.status, this.result);
  }

  async open() {
    const [file] = this.input.files;
    this.generation += 1;
    this.clear();
    if (!file) return;
    try {
      if (file.size > MAX_BYTES) throw new RangeError(`The file has ${number(file.size / 1e6, 1)} MB; the page reads ${MAX_BYTES / 1e6}. Use “bertkit predict” for it.`);
      const text = await file.text();
      this.content = parseTable(text, file.name);
      if (this.content.rows.length > MAX_ROWS) throw new RangeError(`The file has ${count(this.content.rows)} rows; the page reads ${MAX_ROWS.toLocaleString("en")}. Use “bertkit predict” for it.`);
      this.fileName = file.name.replace(/\.[^.]*$/, "");
      this.choose();
      if (text.includes("\uFFFD")) this.status.textContent = "Some characters of the file are not UTF-8 and were lost; save it as UTF-8 first.";
    } catch (error) {
      this.status.textContent = error.message;
    }
  }

  clear() {
    for (const part of [this.form, this.result]) part.replaceChildren();
    this.status.textContent = "";
  }

  /** Let the user say which columns hold the texts. */
  choose() {
    const { columns, rows } = this.content;
    this.selects = Object.entries(this.table.columns).map(([name, usual]) => this.select(name, usual, columns));
    const fields = this.selects.map(({ name, input }) => element("label", {}, `${name} `, input));
    this.go = element("button", { type: "button", class: "go", onclick: () => this.predict() }, `Predict ${count(rows)} rows`);
    this.form.replaceChildren(element("div", { class: "actions" }, ...fields, this.go));
  }

  select(name, usual, columns) {
    const optional = this.table.optional?.includes(name) ? [""] : [];
    const found = usual.map((each) => columns.findIndex((column) => column.trim().toLowerCase() === each)).find((index) => index >= 0);
    const options = [...optional, ...columns.keys()].map((index) => element("option", { value: index }, index === "" ? "none" : columns[index]));
    const input = element("select", {}, ...options);
    input.value = found ?? (optional.length ? "" : Math.min(Object.keys(this.table.columns).indexOf(name), columns.length - 1));
    return { name, input };
  }

  async predict() {
    const generation = ++this.generation;
    const chosen = this.selects.filter(({ input }) => input.value !== "").map(({ name, input }) => [name, Number(input.value)]);
    const filled = [...this.content.rows.keys()].filter((row) => chosen.every(([, column]) => this.content.rows[row][column]?.trim()));
    const cells = [];
    const started = performance.now();
    try {
      for (let start = 0; start < filled.length; start += ROWS_PER_REQUEST) {
        this.status.textContent = `${start.toLocaleString("en")} of ${count(filled)} rows …`;
        const batch = filled.slice(start, start + ROWS_PER_REQUEST);
        const inputs = batch.map((row) => Object.fromEntries(chosen.map(([name, column]) => [name, this.content.rows[row][column]])));
        const { results } = await this.ask(this.table.path, this.table.body(inputs));
        if (generation !== this.generation) return; // another file, or another attempt
        batch.forEach((row, n) => { cells[row] = this.table.cells(results[n]); });
      }
      this.show(cells, filled.length, (performance.now() - started) / 1000);
    } catch (error) {
      if (generation === this.generation) this.result.replaceChildren(errorBox(error, () => this.predict()));
    }
  }

  show(cells, predicted, seconds) {
    const names = Object.keys(cells.find(Boolean) ?? {});
    const columns = [...this.content.columns, ...names.map((name) => (this.content.columns.includes(name) ? `predicted ${name}` : name))];
    const rows = this.content.rows.map((row, n) => [...this.content.columns.map((_, column) => row[column] ?? ""), ...names.map((name) => shown(cells[n]?.[name]))]);
    const empty = this.content.rows.length - predicted;
    this.status.textContent = `${predicted.toLocaleString("en")} rows in ${number(seconds, 1)} s${empty ? `; ${empty.toLocaleString("en")} without a text were left out` : ""}.`;
    const address = URL.createObjectURL(new Blob([writeTable(columns, rows)], { type: "text/csv" }));
    const download = element("a", { class: "go", href: address, download: `${this.fileName}-${this.name}.csv` }, "Download CSV");
    const more = rows.length > SHOWN_ROWS ? `The first ${SHOWN_ROWS} of ${count(rows)} rows; the download has all.` : "";
    const actions = element("div", { class: "actions" }, download, element("span", { class: "fine" }, more));
    const predictedFirst = (row) => [...row.slice(-names.length), ...row.slice(0, -names.length)]; // seen on narrow screens, too
    this.result.replaceChildren(actions, preview([columns, ...rows.slice(0, SHOWN_ROWS)].map(predictedFirst), names.length));
  }
}

function count(list) { return list.length.toLocaleString("en"); }

function shown(value) { return typeof value === "number" ? `${Number(value.toPrecision(4))}` : (value ?? ""); }

function preview([columns, ...rows], added) {
  const kind = (n) => (n < added ? "added" : null);
  const head = element("tr", {}, ...columns.map((name, n) => element("th", { scope: "col", class: kind(n) }, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, n) => element("td", { class: kind(n), title: cell.length > 60 ? cell : null }, element("bdi", {}, cell)))));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": "predictions" }, table);
}
