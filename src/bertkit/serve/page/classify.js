// Give a text, or a pair of texts, a label or a number.

import { element, number } from "../inside/drawing.js";
import { textAndPair } from "./form.js";
import { bars, percent, seenNotes } from "./parts.js";

export const tool = {
  name: "classify",
  title: "Classify",
  ability: "classify",
  lead: "The labels that the model was fine-tuned for, with the probability of each.",
  needs: "It gives a text one of your labels, with a model from “bertkit finetune classify”, multilabel or regress.",
  fields: textAndPair(4, "Second text, for models of pairs"),
  examples: [
    { text: "A warm, funny film that I would gladly see again." },
    { text: "The parcel came two weeks late and the box was open." },
    { text: "The central bank left interest rates unchanged on Thursday." },
    { title: "A pair: does the second follow?", text: "A man plays the guitar on a stage.", pair: "Somebody makes music." },
  ],
  ask: async ({ text, pair }, model, send) => {
    const pairs = pair.trim() ? { pairs: [pair] } : {};
    return (await send("classify", { texts: [text], ...pairs })).results[0];
  },
  draw: (result) => {
    const notes = seenNotes(result.seen);
    if ("value" in result) return drawValue(result, notes);
    const chosen = "labels" in result ? result.labels : [result.label];
    const ranked = Object.entries(result.probabilities).sort(([, one], [, other]) => other - one);
    const rows = ranked.map(([label, share]) => ({ label, share, chosen: chosen.includes(label) }));
    return { nodes: [...notes, bars(rows)], summary: sentence(result) };
  },
};

function drawValue({ value }, notes) {
  return { nodes: [...notes, element("p", { class: "large" }, number(value))], summary: `The model rates it ${number(value)}.` };
}

function sentence(result) {
  if ("labels" in result) return result.labels.length ? `Labels: ${result.labels.join(", ")}.` : "None of the labels.";
  if (result.label === null) return "The model would rather not say: no label is likely enough.";
  return `${result.label}, ${percent(result.probability)}.`;
}
