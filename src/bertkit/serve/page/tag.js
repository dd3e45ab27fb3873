// Token classification: names, places or parts of speech as colored spans of the text.

import { element } from "../inside/drawing.js";
import { around, hue, marked, percent } from "./parts.js";

export const tool = {
  name: "tag",
  title: "Tag",
  ability: "tag",
  lead: "The spans of a text that the model was fine-tuned to find, each in the color of its label.",
  needs: "a tagging model",
  how: "Fine-tune one on a file with a word and its tag on each line (CoNLL):",
  command: "bertkit finetune tag --train train.conll --out my-tags",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { title: "Two people", text: "Ada Lovelace met Charles Babbage in London in 1833." },
    { title: "Places", text: "The United Nations moved its office from Geneva to Nairobi." },
    { title: "A company", text: "Maria works for Siemens and lives near Lake Constance." },
  ],
  ask: async ({ text }, model, send) => (await send("tag", { texts: [text] })).results[0],
  draw: ({ spans }, { text }, panel) => {
    const hues = colors(panel.chosen.labels, spans);
    const marks = spans.map((span) => ({
      start: span.characters[0], end: span.characters[1], make: (covered) => taggedSpan(covered, span, hues),
    }));
    return { nodes: [marked(text, marks), legend(spans, hues)], summary: sentence(spans) };
  },
  why: ({ spans, words, seen }, { text }, model) => spans.map((span) => {
    const body = { text: around(text, span.characters, seen, model), word: words[span.words[0]] };
    return [`${span.text} (${span.label})`, body];
  }),
  table: {
    columns: { text: ["text", "sentence"] },
    path: "tag",
    body: (rows) => ({ texts: rows.map(({ text }) => text) }),
    cells: ({ spans }) => ({ spans: spans.map(({ text, label }) => `${text} (${label})`).join("; ") }),
  },
};

/** A hue for each type of span: B-PER and I-PER are one. */
function colors(labels, spans) {
  const types = [...(labels ?? []).map((label) => label.replace(/^[A-Z]-/, "")), ...spans.map(({ label }) => label)];
  return new Map([...new Set(types)].sort().map((type, number) => [type, hue(number)]));
}

function taggedSpan(text, { label, probability }, hues) {
  const mark = element("mark", { class: "tagged", title: `${label}, ${percent(probability)}` }, text, element("small", {}, label));
  mark.style.setProperty("--hue", hues.get(label));
  return mark;
}

function legend(spans, hues) {
  const counts = new Map();
  for (const { label } of spans) counts.set(label, (counts.get(label) ?? 0) + 1);
  const items = [...counts].map(([label, count]) => {
    const item = element("li", {}, label, element("span", { class: "figure" }, ` ${count}`));
    item.style.setProperty("--hue", hues.get(label));
    return item;
  });
  return element("ul", { class: "legend" }, ...items);
}

function sentence(spans) {
  const listed = spans.slice(0, 12).map(({ text, label }) => `${text} (${label})`);
  if (!listed.length) return "Nothing found.";
  return `Found: ${listed.join(", ")}${spans.length > listed.length ? ` and ${spans.length - listed.length} more` : ""}.`;
}
