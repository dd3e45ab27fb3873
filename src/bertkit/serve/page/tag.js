// Names, places, parts of speech: colored stretches of the text.

import { element } from "../inside/drawing.js";
import { hue, marked, percent, seenNotes } from "./parts.js";

export const tool = {
  name: "tag",
  title: "Tag",
  ability: "tag",
  lead: "The stretches of a text that the model was fine-tuned to find, each in the color of its label.",
  needs: "It colors names, places or parts of speech, with a model from “bertkit finetune tag”.",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { text: "Ada Lovelace met Charles Babbage in London in 1833." },
    { text: "The United Nations moved its office from Geneva to Nairobi." },
    { text: "Maria works for Siemens and lives near Lake Constance." },
  ],
  ask: async ({ text }, model, send) => (await send("tag", { texts: [text] })).results[0],
  draw: ({ spans, seen }, { text }, panel) => {
    const hues = colors(panel.chosen.labels, spans);
    const stretches = spans.map((span) => ({
      start: span.characters[0], end: span.characters[1], make: (written) => stretch(written, span, hues),
    }));
    const nodes = [...seenNotes(seen), marked(text, stretches), legend(spans, hues)];
    return { nodes, said: sentence(spans) };
  },
};

/** A hue for each kind: B-PER and I-PER are one. */
function colors(labels, spans) {
  const kinds = [...(labels ?? []).map((label) => label.replace(/^[A-Z]-/, "")), ...spans.map(({ label }) => label)];
  return new Map([...new Set(kinds)].sort().map((kind, number) => [kind, hue(number)]));
}

function stretch(written, { label, probability }, hues) {
  const made = element("mark", { class: "tagged", title: `${label}, ${percent(probability)}` }, written, element("small", {}, label));
  made.style.setProperty("--hue", hues.get(label));
  return made;
}

function legend(spans, hues) {
  const counts = new Map();
  for (const { label } of spans) counts.set(label, (counts.get(label) ?? 0) + 1);
  const items = [...counts].map(([label, count]) => {
    const made = element("li", {}, label, element("span", { class: "figure" }, ` ${count}`));
    made.style.setProperty("--hue", hues.get(label));
    return made;
  });
  return element("ul", { class: "legend" }, ...items);
}

function sentence(spans) {
  const told = spans.slice(0, 12).map(({ text, label }) => `${text} (${label})`);
  if (!told.length) return "Nothing found.";
  return `Found: ${told.join(", ")}${spans.length > told.length ? ` and ${spans.length - told.length} more` : ""}.`;
}
