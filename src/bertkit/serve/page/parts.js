// Parts that several tools draw: bars, marked spans of a text, percentages. Texts become text nodes, never markup.

import { element } from "../inside/drawing.js";

/** 0.934 as 93%, 0.042 as 4.2%, and less than 0.001 as <0.1%. */
export function percent(share) {
  if (share < 0.001) return "<0.1%";
  return share < 0.0995 ? `${(share * 100).toFixed(1)}%` : `${Math.round(share * 100)}%`;
}

/**
 * A list of {label, share, shown, chosen, choose}: a bar for each share, 0 to 1; with `choose` the rows are buttons.
 */
export function bars(rows) {
  return element("ol", { class: "bars" }, ...rows.map(bar));
}

function bar({ label, share, shown = percent(share), chosen = false, choose = null }) {
  const parts = [element("bdi", { class: "name" }, label), element("span", { class: "figure" }, shown)];
  const inside = choose
    ? element("button", { type: "button", "aria-pressed": `${chosen}`, onclick: choose }, ...parts)
    : element("div", {}, ...parts);
  inside.style.setProperty("--share", Math.max(0, Math.min(1, share)));
  return element("li", { class: chosen ? "chosen" : null }, inside);
}

/**
 * A text with marked spans: `spans` are {start, end, make}, in characters (code points, as the server counts),
 * and `make(text)` gives the element of a span. A span that overlaps an earlier one is left out.
 */
export function marked(text, spans) {
  const characters = Array.from(text);
  const nodes = [];
  let position = 0;
  for (const { start, end, make } of [...spans].sort((one, other) => one.start - other.start)) {
    if (start < position || end <= start) continue;
    nodes.push(characters.slice(position, start).join(""), make(characters.slice(start, end).join("")));
    position = end;
  }
  return element("p", { class: "passage", dir: "auto" }, ...nodes, characters.slice(position).join(""));
}

/** A hue for each label: neighbors in the list get distant ones. */
export function hue(number) {
  return Math.round(number * 137.5 + 215) % 360;
}

/** The lines of a text that are not empty. */
export function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

const MARGIN = 0.1; // of probability between the first and the second: below, neither is announced

/** A sentence for the best of several {label, share}: which one it is, or that the model is not sure. */
export function verdict(ranked) {
  const [first, second] = [...ranked].sort((one, other) => other.share - one.share);
  const close = second && first.share - second.share < MARGIN;
  const shown = ({ label, share }) => `${label}, ${percent(share)}`;
  return close ? `Not sure: ${shown(first)}; ${shown(second)}.` : `${shown(first)}.`;
}

const READ_SHARE = 0.5; // of the model's length that an excerpt takes: there may be a question before it

/** The part of a text around [start, end) that the model can read at once: the whole text, if it was read so. */
export function around(text, [start, end], { tokens, windows }, { max_length: limit }) {
  if (windows < 2) return text;
  const characters = Array.from(text);
  const margin = Math.floor((characters.length * READ_SHARE * limit) / tokens / 2);
  const [first, last] = [Math.max(0, start - margin), Math.min(characters.length, end + margin)];
  const before = characters.slice(first, start).join("");
  const after = characters.slice(end, last).join("");
  const whole = characters.slice(start, end).join("");
  return (first ? before.replace(/^\S*\s/, "") : before) + whole + (last < characters.length ? after.replace(/\s\S*$/, "") : after);
}

/** A text of at most `length` characters, with an ellipsis where it was longer. */
export function short(text, length = 60) {
  const characters = Array.from(text);
  return characters.length > length ? `${characters.slice(0, length - 1).join("")}…` : text;
}
