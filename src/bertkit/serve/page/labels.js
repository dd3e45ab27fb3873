// Which of some labels fits a text, though the model was trained on none of them.

import { bars, lines, verdict } from "./parts.js";

const COMPLAINTS = "refund: The customer wants money back.\ndelivery: The customer asks where a parcel is.\npraise: The customer is happy.";

export const labels = {
  name: "labels",
  title: "Your labels",
  verb: "Classify",
  ability: "zero-shot",
  lead: "Labels of your own, with the probability of each: the model was trained on none of them.",
  needs: "a model for vectors of sentences, or of natural language inference",
  how: "One of the bundled models is:",
  command: "",
  fields: [
    { name: "text", label: "Text", rows: 3 },
    { name: "labels", label: "Labels, one on each line, with a description after a colon", rows: 4, lines: true, hint: "type two labels or more" },
    { name: "mode", label: "Labels are", kind: "choice", options: () => [["one", "exclusive: exactly one fits"], ["each", "independent: each is judged by itself"]] },
  ],
  examples: [
    { title: "A parcel", text: "Where is my parcel? It has been two weeks.", labels: COMPLAINTS },
    { title: "Money", text: "Please send the money back to my account.", labels: COMPLAINTS },
    { title: "Topics", text: "The striker scored twice in the last five minutes.", labels: "sports\npolitics\ncooking\nscience" },
  ],
  missing: ({ labels, mode }) => (lines(labels).length < (mode === "each" ? 1 : 2) ? "Type two labels or more, one on each line." : null),
  ask: async ({ text, labels, mode }, model, send) => {
    const body = { texts: [text], labels: described(labels), ...(mode === "each" ? { multi_label: true } : {}) };
    return (await send("classify", body)).results[0];
  },
  draw: ({ label: best, probabilities }, { mode }) => {
    const ranked = Object.entries(probabilities).sort(([, one], [, other]) => other - one);
    const rows = ranked.map(([label, share]) => ({ label, share, chosen: mode === "each" ? share >= 0.5 : label === best }));
    return { nodes: [bars(rows)], summary: verdict(rows) };
  },
};

/** Names alone as a list; where a line has a description, an object of descriptions by name. */
function described(labels) {
  const pairs = lines(labels).map((line) => line.split(/:(.*)/s).map((part) => part?.trim()));
  if (!pairs.some(([, description]) => description)) return pairs.map(([name]) => name);
  return Object.fromEntries(pairs.map(([name, description]) => [name, description || `This text is about ${name}.`]));
}
