// The number of tokens below each text field while typing, and a warning where the model cannot read the text.

import { element } from "../inside/drawing.js";
import { ask } from "./ask.js";
import { lines } from "./parts.js";

const TYPING_DELAY = 250; // milliseconds without a key before the tokens are requested
const MAX_COUNTED = 20_000; // characters; of longer texts the characters are told
const MOSTLY = 0.5; // share of tokens that are not in the vocabulary, from which there is a warning
const MIN_LETTERS = 1.5; // of an alphabet for each token: fewer, and words are read letter by letter
const MIN_TOKENS = 5; // a warning needs
const MIN_VOCABULARY = 1_000; // smaller ones are made of letters
const ALPHABETS = /(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}])\p{L}/gu;

export class TokenCounts {
  /** `fields` are those of the panel. */
  constructor(fields) {
    this.fields = fields.filter(({ count }) => count);
    this.warning = element("p", { class: "note", role: "status", hidden: true });
  }

  /** Count again, after a pause: `model` reads the texts. */
  update(model) {
    this.stop();
    for (const field of this.fields) field.count.textContent = plain(field);
    const read = this.fields.filter(({ value, asLines }) => value.trim() && !asLines && value.length <= MAX_COUNTED);
    this.warning.hidden = true;
    if (read.length) this.timer = setTimeout(() => this.request(read, model), TYPING_DELAY);
  }

  stop() {
    clearTimeout(this.timer);
    this.running?.abort();
  }

  async request(fields, model) {
    const controller = (this.running = new AbortController());
    const inputs = fields.map((field) => field.written(model));
    const { content } = await ask("tokenize", { inputs, model: model.id }, controller).catch(() => ({})); // the tool tells what is wrong
    if (!content || controller !== this.running) return;
    fields.forEach((field, n) => { field.count.textContent = counted(content[n].length, model); });
    const sentence = content.map((tokens, n) => unreadable(inputs[n], tokens, model)).find(Boolean);
    this.warning.hidden = !sentence;
    this.warning.textContent = sentence ?? "";
  }
}

function plain({ value, asLines }) {
  if (!value.trim()) return "";
  if (asLines) return number(lines(value).length, "line");
  return value.length > MAX_COUNTED ? number(value.length, "character") : "";
}

function counted(count, { max_length: limit }) {
  return count > limit ? `${number(count, "token")}, over the model's ${limit.toLocaleString("en")}` : number(count, "token");
}

function number(count, unit) {
  return `${count.toLocaleString("en")} ${unit}${count === 1 ? "" : "s"}`;
}

/** A sentence where most of the text is not in the vocabulary, or only its letters are; else undefined. */
function unreadable(text, tokens, { id, unknown, vocabulary }) {
  const own = tokens.filter(({ special, text: token }) => !special || token === unknown);
  const missing = own.filter(({ text: token }) => token === unknown).length;
  if (missing > MOSTLY * own.length) {
    return `The vocabulary of “${id}” lacks most of this text: ${missing} of ${own.length} tokens are unknown, so the answer means little.`;
  }
  const letters = text.match(ALPHABETS)?.length ?? 0;
  if (own.length < MIN_TOKENS || vocabulary < MIN_VOCABULARY || letters < own.length / 2 || letters > MIN_LETTERS * own.length) return undefined;
  return `“${id}” reads this text letter by letter: it was hardly trained on such text, so the answer means little.`;
}
