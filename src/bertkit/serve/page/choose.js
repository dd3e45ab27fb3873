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
    { name: "choices", label: "Choices, one on each line", rows: 4, hint: "type two choices or more, one on each line" },
  ],
  examples: [
    { question: "She opened the umbrella because", choices: "it had started to rain.\nthe soup was too salty.\nher train was early." },
    { question: "To keep bread fresh for longer,", choices: "wrap it in a cloth.\nleave it in the sun.\npaint it blue." },
  ],
  missing: ({ choices }) => (lines(choices).length < 2 ? "Type two choices or more, one on each line." : null),
  ask: async ({ question, choices }, model, send) => (await send("choose", { question, choices: lines(choices) })).results[0],
  draw: (result, { choices }) => {
    const { choice, text, probability, probabilities, seen } = result;
    const rows = lines(choices).map((label, index) => ({ label, share: probabilities[index], chosen: index === choice }));
    const summary = choice === null
      ? "The model would rather not say: no choice is likely enough."
      : `Choice ${choice + 1}: ${text} (${percent(probability)})`;
    return { nodes: [...seenNotes(seen), bars(rows)], summary };
  },
};
