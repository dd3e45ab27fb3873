// One tool on the page: its fields, its examples, the question while one types, the answer or what went wrong.

import { element } from "../inside/drawing.js";
import { ask } from "./ask.js";
import { examples, field, request } from "./form.js";
import { troubleBox } from "./trouble.js";

const TYPING = 250; // milliseconds without a key before a question is sent
const LIVE = 4_000; // characters: longer texts wait for the button

export class Panel {
  /** `models` are those that can do it; `changed` is called when what a link carries has changed. */
  constructor(tool, models, changed) {
    Object.assign(this, { tool, models, changed, waiting: null, timer: null });
    this.chosen = models[0];
    this.said = element("output", { class: "said" });
    this.pending = element("span", { class: "pending", role: "status" });
    this.result = element("div", { class: "result" });
    this.request = request();
    this.fields = tool.fields.map((each) => field(each, this.chosen, () => this.typed()));
    this.element = element("section", { class: `panel-of-${tool.name}` }, ...this.parts());
    this.element.addEventListener("keydown", (event) => this.keys(event));
  }

  parts() {
    const fields = this.fields.map((each) => each.element);
    const form = element("form", { onsubmit: (event) => this.submit(event) }, ...fields, this.actions());
    const lead = element("p", { class: "lead" }, this.tool.lead);
    const title = element("h2", {}, this.tool.title);
    return [title, lead, form, examples(this.tool, (values) => this.use(values)), this.said, this.result, this.request.element];
  }

  actions() {
    const extra = this.tool.actions?.(this) ?? [];
    const go = element("button", { type: "submit", class: "go", title: "Ctrl-Enter" }, this.tool.verb);
    return element("div", { class: "actions" }, go, this.pending, ...extra, ...this.modelChoice());
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
    for (const each of this.fields) each.fit(this.chosen);
    this.changed();
    this.run();
  }

  get values() {
    return Object.fromEntries(this.fields.map((each) => [each.name, each.value]));
  }

  /** Put values into the fields and ask; names that are no field are left alone. */
  use(values) {
    for (const each of this.fields) each.value = values[each.name] ?? each.first;
    this.changed();
    this.run();
  }

  /** What a link carries. */
  get state() {
    const own = Object.entries(this.values).filter(([, value]) => value);
    return { ...(this.models.length > 1 ? { model: this.chosen.id } : {}), ...Object.fromEntries(own) };
  }

  /** Take what a link carried; an empty one shows the first example. */
  restore(state) {
    const known = this.models.find((model) => model.id === state.model);
    if (known) [this.chosen, this.modelSelect.value] = [known, known.id];
    const carried = this.fields.some((each) => each.name in state);
    this.use(carried ? state : this.tool.examples[0]);
  }

  typed() {
    this.changed();
    clearTimeout(this.timer);
    const long = Object.values(this.values).join("").length > LIVE;
    if (long || !this.tool.live) return this.waitForButton(long ? "Long text" : "Changed");
    this.pending.textContent = "";
    this.timer = setTimeout(() => this.run(), TYPING);
  }

  /** The answer on the page is that of another text, until the button is pressed. */
  waitForButton(why) {
    this.stop();
    this.pending.textContent = `${why}: press ${this.tool.verb}`;
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

  say(text) { this.said.textContent = text; }

  /** Nobody waits for the answer any more. */
  stop() {
    clearTimeout(this.timer);
    this.waiting?.abort();
    this.waiting = null;
    this.element.removeAttribute("aria-busy");
  }

  /** Ask, and show the answer; a question that is still under way is given up. */
  async run() {
    this.stop();
    const values = this.values;
    const wanting = this.wanting(values);
    if (wanting) return this.show([], wanting);
    const own = (this.waiting = new AbortController());
    this.element.setAttribute("aria-busy", "true");
    try {
      const notes = [];
      const found = await this.tool.ask(values, this.chosen, this.sender(own.signal, notes), (text) => this.say(text));
      if (own === this.waiting) this.draw(found, values, notes);
    } catch (error) {
      if (own === this.waiting) this.fail(error);
    } finally {
      if (own === this.waiting) this.stop();
    }
  }

  /** What has to be typed before there is anything to ask. */
  wanting(values) {
    const empty = this.tool.fields.find(({ name, optional }) => !optional && !values[name].trim());
    return empty ? `${empty.label}: ${empty.wanted ?? "type something"}.` : this.tool.wanting?.(values, this.chosen);
  }

  sender(signal, notes) {
    return async (path, body) => {
      const whole = { ...body, model: this.chosen.id };
      this.request.show(path, whole);
      const { content, note } = await ask(path, whole, { signal, tell: (text) => this.say(text) });
      if (note) notes.push(note);
      return content;
    };
  }

  draw(found, values, notes) {
    const { nodes, said } = this.tool.draw(found, values, this);
    this.show([...notes.map((note) => element("p", { class: "note" }, note)), ...nodes], said);
  }

  show(nodes, said) {
    this.result.replaceChildren(...nodes);
    this.say(said);
    this.pending.textContent = "";
    delete this.element.dataset.stale;
    this.element.dataset.turn = (Number(this.element.dataset.turn) || 0) + 1;
  }

  fail(error) {
    this.show([troubleBox(error, () => this.run())], "");
  }
}
