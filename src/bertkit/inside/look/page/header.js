// What stands around the views: the model's name, the text, the explanation of terms, and where the page comes from.

import { element } from "./drawing.js";

const TERMS = {
  query: "Every token has a query, a vector that stands for what the token looks for.",
  key: "Every token has a key, a vector that the queries are compared with: the score of two tokens is the dot product of query and key, divided by √d.",
  softmax: "Softmax turns the scores of one query into weights from 0 to 1 that add up to 1; these weights are the lines and colors here.",
  head: "A head is one such attention with queries and keys of its own; heads work side by side, and each can learn to look at something else.",
  layer: "A layer adds to the vector of every token what its heads collected; the next layer reads the result.",
};

/** The model's name, where the page knows it, and the texts; long ones are cut, with a button that shows all. */
export function header({ name, source, text, pair }) {
  const texts = [source?.text ?? null, text, pair].filter((each) => each !== null);
  const title = name ? [element("h1", {}, "What the model ", element("bdi", {}, name), " computes for this text")] : [];
  return element("header", {}, ...title, ...texts.flatMap(longText));
}

function longText(text) {
  const shown = element("p", { class: "text", dir: "auto" }, text);
  const more = element("button", { type: "button", class: "link more", "aria-expanded": "false", hidden: true }, "more");
  more.addEventListener("click", () => {
    const open = shown.classList.toggle("open");
    more.setAttribute("aria-expanded", open);
    more.textContent = open ? "less" : "more";
  });
  return [shown, more];
}

/** Show the button of each text that does not fit. */
export function offerMore(host) {
  for (const text of host.querySelectorAll(".text:not(.open)")) {
    const long = text.scrollHeight > text.clientHeight + 2;
    text.classList.toggle("long", long);
    text.nextElementSibling.hidden = !long;
  }
}

/** The explanation of five terms, opened by "?". */
export function help() {
  const rows = Object.entries(TERMS).flatMap(([term, sentence]) => [element("dt", {}, term), element("dd", {}, sentence)]);
  return element("details", { class: "help" }, element("summary", { "aria-label": "What the terms mean", title: "What the terms mean" }, "?"), element("dl", {}, ...rows));
}

/** The model, the number of tokens, and how weights were computed. */
export function footer({ name, model, tokens, cutFrom, precision, madeWith }) {
  const cut = cutFrom ? `, the first of ${cutFrom.toLocaleString("en")}` : "";
  const parts = [name ? `${name}: ${model}` : model, `${tokens.length} tokens${cut}`, `weights computed from queries and keys in ${precision}`];
  return element("footer", {}, [...parts, ...(madeWith ? [`made with ${madeWith}`] : [])].join(" · "));
}
