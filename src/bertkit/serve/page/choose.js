// Which of several continuations or answers fits.

import { bars, lines, percent, seenNotes } from "./parts.js";

export const tool = {
  name: "choose",
  title: "Choose",
  ability: "choose",
  lead: "Which of several continuations or answers fits best.",
  needs: "It picks the best of several choices, with a model from “bertkit finetune choose”.",
  fields: [
    { name: "question", label: "Question or beginning", rows: 3 },
    { name: "choices", label: "Choices, one on each line", rows: 4, wanted: "type two choices or more, one on each line" },
  ],
  examples: [
    { question: "She opened the umbrella because", choices: "it had started to rain.\nthe soup was too salty.\nher train was early." },
    { question: "To keep bread fresh for longer,", choices: "wrap it in a cloth.\nleave it in the sun.\npaint it blue." },
  ],
  wanting: ({ choices }) => (lines(choices).length < 2 ? "Type two choices or more, one on each line." : null),
  ask: async ({ question, choices }, model, send) => (await send("choose", { question, choices: lines(choices) })).results[0],
  draw: (found, { choices }) => {
    const rows = lines(choices).map((label, at) => ({ label, share: found.probabilities[at], chosen: at === found.choice }));
    const said = found.choice === null
      ? "The model would rather not say: no choice is likely enough."
      : `Choice ${found.choice + 1}: ${found.text} (${percent(found.probability)})`;
    return { nodes: [...seenNotes(found.seen), bars(rows)], said };
  },
};
