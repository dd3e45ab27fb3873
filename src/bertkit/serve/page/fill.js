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
  needs: "a masked-word model",
  how: "Serve a model that kept its masked-word head, such as the bundled one:",
  command: "",
  fields: [{ name: "text", label: "Text with a blank", rows: 3, written: blanked, hint: "type a text with ___ where a word is missing" }],
  examples: [
    { title: "A capital", text: "Paris is the ___ of France." },
    { title: "At the doctor's", text: "The doctor told the ___ to rest for a week." },
    { title: "Two blanks", text: "She put the ___ in the oven and set the ___ to 200 degrees." },
    { title: "The river bank", text: "The bank of the river was covered with ___." },
  ],
  actions: (panel) => [element("button", { type: "button", class: "quiet", onclick: () => insertBlank(panel) }, "Insert a blank")],
  missing: ({ text }, model) => (blanked(text, model).includes(model.mask) ? null : "Write ___ where a word is missing."),
  ask: async ({ text }, model, send) => {
    const top = Math.min(CANDIDATES, model.vocabulary);
    return (await send("fill", { text: blanked(text, model), top })).results[0];
  },
  draw: (candidates, { text }, panel) => {
    const between = blanked(text, panel.chosen).split(panel.chosen.mask);
    const filled = new FilledText(between, byBlank(candidates));
    return { nodes: filled.nodes, summary: filled.sentence, heard: true }; // it is shown as the text and the list
  },
  why: (candidates, { text }, model) => [["the word", { text: blanked(text, model) }]],
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

/** The candidates of each blank. */
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
