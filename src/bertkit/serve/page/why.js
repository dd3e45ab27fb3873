// “Why?” below a result: how much each word of the text adds to it, by integrated gradients.

import { element, number } from "../inside/drawing.js";
import { marked, percent } from "./parts.js";
import { errorBox } from "./trouble.js";

const FAINT = 0.04; // share of the largest contribution below which a word stays plain

export class Why {
  /** `ask(body, signal)` gives the reply of /why. */
  constructor(ask) {
    this.ask = ask;
    this.button = element("button", { type: "button", class: "quiet", "aria-expanded": "false", onclick: () => this.toggle() }, "Why?");
    this.targets = element("select", { "aria-label": "what to explain", onchange: () => this.explain() });
    this.answer = element("div", { role: "status" });
    this.element = element("section", { class: "why", "aria-label": "why", hidden: true }, element("div", { class: "actions" }, this.button, this.targets), this.answer);
  }

  get open() { return this.button.getAttribute("aria-expanded") === "true"; }

  /** Offer to explain a new result: `targets` are [name, body of the request]; an empty list hides the button. */
  offer(targets) {
    this.bodies = targets.map(([, body]) => body);
    this.targets.replaceChildren(...targets.map(([name], index) => element("option", { value: index }, name)));
    this.element.hidden = !targets.length;
    this.show();
  }

  toggle() {
    this.button.setAttribute("aria-expanded", `${!this.open}`);
    this.show();
  }

  show() {
    this.running?.abort(); // nobody waits for it any longer
    this.targets.hidden = !this.open || this.bodies.length < 2;
    this.answer.replaceChildren();
    if (this.open && this.bodies.length) this.explain();
  }

  /** Close it; the server stops, too, when the request is aborted. */
  cancel() {
    this.toggle();
    this.button.focus();
  }

  async explain() {
    this.running?.abort();
    const controller = (this.running = new AbortController());
    const cancel = element("button", { type: "button", class: "quiet", onclick: () => this.cancel() }, "Cancel");
    this.answer.replaceChildren(element("p", { class: "said" }, "Computing how much each word adds … "), cancel);
    try {
      const reply = await this.ask(this.bodies[this.targets.value], controller.signal);
      if (controller === this.running) this.answer.replaceChildren(...explanation(reply));
    } catch (error) {
      if (controller === this.running && !controller.signal.aborted) this.answer.replaceChildren(errorBox(error, () => this.explain()));
    }
  }
}

function explanation(reply) {
  const { target, text, pair, words, cut_from: cutFrom } = reply;
  const largest = Math.max(...words.map(({ share }) => Math.abs(share)), 1e-9);
  const texts = [text, pair].filter((each) => each !== null);
  const shaded = texts.map((each, part) => marked(each, words.filter((word) => word.part === part).map((word) => shade(word, largest))));
  const cut = cutFrom ? [element("p", { class: "note" }, `The text has ${cutFrom} tokens; only the part that the model reads is explained.`)] : [];
  const legend = element("ul", { class: "legend" }, element("li", { class: "for" }, "adds to it"), element("li", { class: "against" }, "takes from it"));
  return [element("p", { class: "said" }, sentence(target, words)), ...cut, ...shaded, legend, element("p", { class: "fine" }, scores(reply))];
}

/** What the words add up to: probabilities, where the target has them, or the model's own units. */
function scores({ probability, baseline_probability: hidden, score, baseline_score: baseline, units }) {
  if (typeof probability === "number") return `Probability ${percent(probability)} with the text, ${percent(hidden)} with every word masked.`;
  return `Score ${number(score, 2)} with the text, ${number(baseline, 2)} with every word masked (${units}); the words share the difference.`;
}

function shade({ start, end, share }, largest) {
  const strength = Math.abs(share) / largest;
  const make = (word) => {
    if (strength < FAINT) return element("span", { title: number(share) }, word);
    const mark = element("mark", { class: share > 0 ? "for" : "against", title: number(share) }, word);
    mark.style.setProperty("--strength", strength);
    return mark;
  };
  return { start, end, make };
}

function sentence(target, words) {
  const ranked = [...words].sort((one, other) => other.share - one.share);
  const list = (some) => some.map(({ word }) => `“${word}”`).join(", ");
  const [added, taken] = [ranked.filter(({ share }) => share > 0).slice(0, 3), ranked.filter(({ share }) => share < 0).slice(-2).reverse()];
  const parts = [added.length ? `${list(added)} add${added.length > 1 ? "" : "s"} most to ${target}` : `No word adds to ${target}`];
  if (taken.length) parts.push(`${list(taken)} take${taken.length > 1 ? "" : "s"} most from it`);
  return `${parts.join("; ")}.`;
}
