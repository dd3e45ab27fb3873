// Masked words: candidates for each blank, while typing.

import { element } from "../inside/drawing.js";
import { bars, percent } from "./parts.js";

const CANDIDATES = 8; // for each blank
const UNDERSCORES = /_{3,}/g; // as people write a blank

export const fill = {
  name: "fill",
  title: "Fill",
  ability: "fill",
  lead: "Leave a word out, and the model says what could stand there. Write the blank as ___.",
  needs: "It fills blanks in a text, with a model that kept its masked-word head, as pre-training leaves it.",
  fields: [{ name: "text", label: "Text with a blank", rows: 3, hint: "type a text with ___ where a word is missing" }],
  examples: [
    { text: "Paris is the ___ of France." },
    { text: "The doctor told the ___ to rest for a week." },
    { text: "She put the ___ in the oven and set the ___ to 200 degrees." },
    { text: "The bank of the river was covered with ___." },
  ],
  actions: (panel) => [element("button", { type: "button", class: "quiet", onclick: () => insertBlank(panel) }, "Insert a blank")],
  missing: ({ text }, model) => (blanked(text, model).includes(model.mask) ? null : "Write ___ where a word is missing."),
  ask: async ({ text }, model, send) => (await send("fill", { text: blanked(text, model), top: CANDIDATES })).results[0],
  draw: (candidates, { text }, panel) => {
    const blanks = byBlank(candidates);
    const filled = new FilledText(blanked(text, panel.chosen).split(panel.chosen.mask), blanks);
    return { nodes: filled.nodes, summary: filled.sentence };
  },
};

function blanked(text, model) {
  return text.replace(UNDERSCORES, () => model.mask);
}

function insertBlank(panel) {
  const { input } = panel.fields[0];
  input.setRangeText("___", input.selectionStart, input.selectionEnd, "end");
  input.focus();
  panel.typed();
}

function byBlank(candidates) {
  const blanks = [];
  for (const candidate of candidates) (blanks[candidate.blank] ??= []).push(candidate);
  return blanks;
}

/** The text with a word in each blank, and below it the candidates; choosing one puts it into the text. */
class FilledText {
  constructor(between, blanks) {
    Object.assign(this, { between, blanks, chosen: blanks.map(() => 0) });
    this.text = element("p", { class: "passage", dir: "auto" });
    this.lists = element("div", { class: "side" });
    this.nodes = [this.text, this.lists];
    this.draw();
  }

  get sentence() {
    const words = this.blanks.map(([best]) => `${best.word}, ${percent(best.probability)}`);
    return `Best: ${words.join("; ")}.`;
  }

  word(blank) { return this.blanks[blank][this.chosen[blank]]; }

  draw() {
    const parts = this.blanks.flatMap((_, blank) => [
      this.between[blank],
      element("mark", { class: "filled", title: percent(this.word(blank).probability) }, this.word(blank).word),
    ]);
    this.text.replaceChildren(...parts, this.between.slice(this.blanks.length).join(""));
    this.lists.replaceChildren(...this.blanks.map((_, blank) => this.list(blank)));
  }

  list(blank) {
    const rows = this.blanks[blank].map(({ word, probability }, index) => ({
      label: word, share: probability, chosen: index === this.chosen[blank], choose: () => this.choose(blank, index),
    }));
    const name = this.blanks.length > 1 ? `Blank ${blank + 1}` : "Words";
    return element("section", { "aria-label": name }, element("h3", {}, name), bars(rows));
  }

  choose(blank, index) {
    this.chosen[blank] = index;
    this.draw();
    this.lists.children[blank].querySelectorAll("button")[index].focus();
  }
}
