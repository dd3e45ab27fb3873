// One tool on the page: its fields, its examples, requests while typing, the result or the error.

import { element } from "../inside/drawing.js";
import { ask } from "./ask.js";
import { copyButton } from "./copy.js";
import { FilePredictions } from "./file.js";
import { examples, field } from "./form.js";
import { linkTo } from "./link.js";
import { RequestView } from "./request.js";
import { TokenCounts } from "./tokens.js";
import { errorBox } from "./trouble.js";
import { Why } from "./why.js";

const TYPING_DELAY = 250; // milliseconds without a key before a request is sent
const MAX_LIVE_CHARACTERS = 4_000; // longer texts wait for the button

export class Panel {
  /** `models` are those with the tool's ability; `changed` is called when the state for the link has changed. */
  constructor(tool, models, changed) {
    Object.assign(this, { tool, models, changed, running: null, timer: null });
    this.chosen = models[0];
    this.summary = element("output", { class: "said" });
    this.pending = element("span", { class: "pending", role: "status" });
    this.took = element("span", { class: "fine took", title: "from the request to the reply" });
    this.notice = element("p", { class: "note", role: "status", hidden: true });
    this.result = element("div", { class: "result" });
    this.request = new RequestView();
    const send = async (path, body, signal) => (await ask(path, { ...body, model: this.chosen.id }, { signal })).content;
    this.why = new Why((body, signal) => send("why", body, signal));
    this.file = tool.table ? [new FilePredictions(tool, send).element] : [];
    this.fields = tool.fields.map((definition) => field(definition, this.chosen, () => this.typed()));
    this.counts = new TokenCounts(this.fields);
    this.element = element("section", { class: `panel-of-${tool.name}` }, ...this.parts());
    this.element.addEventListener("keydown", (event) => this.keys(event));
  }

  parts() {
    const fields = this.fields.map((control) => control.element);
    const form = element("form", { onsubmit: (event) => this.submit(event) }, ...fields, this.actions());
    const lead = element("p", { class: "lead" }, this.tool.lead);
    const title = element("h2", {}, this.tool.title);
    const link = copyButton("Copy link", () => linkTo(this.tool.name, this.state));
    const more = element("div", { class: "more" }, ...this.file, this.request.element, link);
    const tries = examples(this.tool, (values) => this.use(values));
    return [title, lead, this.notice, form, tries, this.counts.warning, this.summary, this.result, this.why.element, more];
  }

  actions() {
    const extra = this.tool.actions?.(this) ?? [];
    const go = element("button", { type: "submit", class: "go", title: "Ctrl-Enter" }, this.tool.verb);
    return element("div", { class: "actions" }, go, this.pending, ...extra, this.took, ...this.modelChoice());
  }

  modelChoice() {
    const options = this.models.map((model) => element("option", { value: model.id }, model.id));
    const change = (event) => this.useModel(event.target.value);
    this.modelSelect = element("select", { "aria-label": "model", onchange: change }, ...options);
    return this.models.length > 1 ? [element("label", { class: "model" }, "model ", this.modelSelect)] : [];
  }

  useModel(id) {
    this.chosen = this.models.find((model) => model.id === id) ?? this.chosen;
    this.modelSelect.value = this.chosen.id;
    for (const control of this.fields) control.fit(this.chosen);
    this.notice.hidden = true;
    this.use(this.values);
  }

  get values() {
    return Object.fromEntries(this.fields.map((control) => [control.name, control.value]));
  }

  /** Put values into the fields and run; other names are ignored. */
  use(values) {
    for (const control of this.fields) control.value = values[control.name] ?? control.first;
    this.changed();
    this.counts.update(this.chosen);
    this.run();
  }

  /** The state for the link. */
  get state() {
    const filled = Object.entries(this.values).filter(([, value]) => value);
    return { ...(this.models.length > 1 ? { model: this.chosen.id } : {}), ...Object.fromEntries(filled) };
  }

  /** Restore the state of a link; an empty one shows the first example. */
  restore(state) {
    const model = this.models.find(({ id }) => id === state.model);
    if (model) [this.chosen, this.modelSelect.value] = [model, model.id];
    this.notice.hidden = Boolean(model) || !state.model;
    this.notice.textContent = `No model “${state.model}” here can do this; “${this.chosen.id}” answers instead.`;
    const hasValues = this.fields.some((control) => control.name in state);
    this.use(hasValues ? state : this.tool.examples[0]);
  }

  typed() {
    this.changed();
    this.counts.update(this.chosen);
    clearTimeout(this.timer);
    const long = Object.values(this.values).join("").length > MAX_LIVE_CHARACTERS;
    if (long || !this.tool.live) return this.waitForButton(long ? "Long text" : "Changed");
    this.pending.textContent = "";
    this.timer = setTimeout(() => this.run(), TYPING_DELAY);
  }

  /** Mark the result as outdated until the button is pressed. */
  waitForButton(reason) {
    this.stop();
    this.forget();
    this.request.clear();
    this.pending.textContent = `${reason}: press ${this.tool.verb}`;
    this.element.dataset.stale = "";
  }

  submit(event) {
    event.preventDefault();
    this.run();
  }

  keys(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.run();
  }

  say(text) { this.summary.textContent = text; }

  /** Cancel the request in progress. */
  stop() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
    this.element.removeAttribute("aria-busy");
  }

  /** Send the requests, and show the result; a request in progress is cancelled. */
  async run() {
    this.stop();
    const values = this.values;
    const missing = this.missing(values);
    if (missing) return this.showMissing(missing);
    const controller = (this.running = new AbortController());
    this.element.setAttribute("aria-busy", "true");
    try {
      const notes = [];
      const send = this.sender(controller.signal, notes);
      const started = performance.now();
      const result = await this.tool.ask(values, this.chosen, send, (text) => this.say(text));
      if (controller === this.running) this.draw(result, values, notes, performance.now() - started);
    } catch (error) {
      if (controller === this.running) this.fail(error);
    } finally {
      if (controller === this.running) this.stop();
    }
  }

  /** A sentence on the input that is missing, if any. */
  missing(values) {
    const empty = this.tool.fields.find(({ name, optional }) => !optional && !values[name].trim());
    return empty ? `${empty.label}: ${empty.hint ?? "type something"}.` : this.tool.missing?.(values, this.chosen);
  }

  sender(signal, notes) {
    return async (path, body) => {
      const complete = { ...body, model: this.chosen.id };
      this.request.show(path, complete);
      const { content, note } = await ask(path, complete, { signal, notify: (text) => this.say(text) });
      if (note) notes.push(note);
      if (!signal.aborted) this.request.answered(content);
      return content;
    };
  }

  draw(result, values, notes, milliseconds) {
    const { nodes, summary, heard = false } = this.tool.draw(result, values, this);
    const told = result?.seen?.cut ? [notRead(result.seen)] : [...new Set(notes)];
    this.show([...told.map((note) => element("p", { class: "note" }, note)), ...nodes], summary, heard);
    this.took.textContent = duration(milliseconds);
    this.why.offer(this.tool.why?.(result, values, this.chosen) ?? []);
  }

  showMissing(sentence) {
    this.show([], sentence);
    this.request.clear();
  }

  /** Take away what belongs to the last result only: its time, and why it is so. */
  forget() {
    this.took.textContent = "";
    this.why.offer([]);
  }

  show(nodes, summary, heard = false) {
    this.result.replaceChildren(...nodes);
    this.say(summary);
    this.summary.classList.toggle("heard", heard);
    this.forget();
    this.pending.textContent = "";
    delete this.element.dataset.stale;
    this.element.dataset.turn = (Number(this.element.dataset.turn) || 0) + 1;
  }

  fail(error) {
    this.show([errorBox(error, () => this.run())], "");
  }
}

function notRead({ tokens, cut }) {
  return `The text is too long for this model: ${cut} of its ${tokens} tokens were not read.`;
}

function duration(milliseconds) {
  return milliseconds < 1000 ? `${Math.max(1, Math.round(milliseconds))} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}
