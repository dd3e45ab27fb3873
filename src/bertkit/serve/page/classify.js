// Give a text, or a pair of texts, a label or a number.

import { element, number } from "../inside/drawing.js";
import { textAndPair } from "./form.js";
import { bars, verdict } from "./parts.js";

export const tool = {
  name: "classify",
  title: "Classify",
  ability: "classify",
  lead: "The labels that the model was fine-tuned for, with the probability of each.",
  needs: "a classifier",
  how: "Fine-tune one on a CSV file with the columns text and label:",
  command: "bertkit finetune classify --train train.csv --out my-labels",
  fields: textAndPair(4, "Second text, for models of pairs"),
  examples: [
    { title: "A kind review", text: "A warm, funny film that I would gladly see again." },
    { title: "A complaint", text: "The parcel came two weeks late and the box was open." },
    { title: "News", text: "The central bank left interest rates unchanged on Thursday." },
    { title: "A pair: does the second follow?", text: "A man plays the guitar on a stage.", pair: "Somebody makes music." },
  ],
  ask: async ({ text, pair }, model, send) => {
    const pairs = pair.trim() ? { pairs: [pair] } : {};
    return (await send("classify", { texts: [text], ...pairs })).results[0];
  },
  draw: (result) => {
    if ("value" in result) return drawValue(result);
    const chosen = "labels" in result ? result.labels : [result.label];
    const rows = ranked(result).map(([label, share]) => ({ label, share, chosen: chosen.includes(label) }));
    return { nodes: [bars(rows)], summary: sentence(result, rows) };
  },
  why: (result, { text, pair }) => {
    const texts = pair.trim() ? { text, pair } : { text };
    return "value" in result ? [["the number", texts]] : ranked(result).map(([target]) => [target, { ...texts, target }]);
  },
  table: {
    columns: { text: ["text", "sentence", "review", "premise", "sentence1"], pair: ["pair", "hypothesis", "sentence2"] },
    optional: ["pair"],
    path: "classify",
    body: (rows) => ({ texts: rows.map(({ text }) => text), ...("pair" in rows[0] ? { pairs: rows.map(({ pair }) => pair) } : {}) }),
    cells: (result) => {
      if ("value" in result) return { prediction: result.value };
      return "labels" in result ? { prediction: result.labels.join("; ") } : { prediction: result.label ?? "", probability: result.probability };
    },
  },
};

function ranked({ probabilities }) {
  return Object.entries(probabilities).sort(([, one], [, other]) => other - one);
}

function drawValue({ value }) {
  return { nodes: [element("p", { class: "large" }, number(value))], summary: `The model rates it ${number(value)}.` };
}

function sentence(result, rows) {
  if ("labels" in result) return result.labels.length ? `Labels: ${result.labels.join(", ")}.` : "None of the labels.";
  return result.label === null ? "Not sure: no label is likely enough." : verdict(rows);
}
