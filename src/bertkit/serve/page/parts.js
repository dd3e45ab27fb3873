// What several tools draw: bars, colored stretches of a text, percentages. Texts become text nodes, never markup.

import { element } from "../inside/drawing.js";

/** 0.934 as 93%, 0.042 as 4.2%, and what is next to nothing as such. */
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
 * A text with stretches marked: `spans` are {start, end, make}, in characters (code points, as the server counts),
 * and `make(text)` gives the element for a stretch. A span that overlaps an earlier one is left out.
 */
export function marked(text, spans) {
  const letters = Array.from(text);
  const nodes = [];
  let at = 0;
  for (const { start, end, make } of [...spans].sort((one, other) => one.start - other.start)) {
    if (start < at || end <= start) continue;
    nodes.push(letters.slice(at, start).join(""), make(letters.slice(start, end).join("")));
    at = end;
  }
  return element("p", { class: "passage", dir: "auto" }, ...nodes, letters.slice(at).join(""));
}

/** A hue for each label: neighbors in the list get distant ones. */
export function hue(number) {
  return Math.round(number * 137.5 + 215) % 360;
}

/** The lines of a text that hold something. */
export function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** What the model did not see, as a list of one note or none. */
export function seenNotes({ tokens, cut }) {
  const told = `The text is too long for this model: ${cut} of its ${tokens} tokens were not read.`;
  return cut ? [element("p", { class: "note" }, told)] : [];
}

/** The first so many characters, and that there are more. */
export function short(text, most = 60) {
  const letters = Array.from(text);
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}
