// Which of several continuations or answers fits.

import { bars, lines, verdict } from "./parts.js";

export const tool = {
  name: "choose",
  title: "Choose",
  ability: "choose",
  lead: "Which of several continuations or answers fits best.",
  needs: "a multiple-choice model",
  how: "Fine-tune one on questions with choices:",
  command: "bertkit finetune choose --train train.jsonl --out my-choices",
  fields: [
    { name: "question", label: "Question or beginning", rows: 3 },
    { name: "choices", label: "Choices, one on each line", rows: 4, lines: true, hint: "type two choices or more, one on each line" },
  ],
  examples: [
    { title: "The umbrella", question: "She opened the umbrella because", choices: "it had started to rain.\nthe soup was too salty.\nher train was early." },
    { title: "Fresh bread", question: "To keep bread fresh for longer,", choices: "wrap it in a cloth.\nleave it in the sun.\npaint it blue." },
  ],
  missing: ({ choices }) => (lines(choices).length < 2 ? "Type two choices or more, one on each line." : null),
  ask: async ({ question, choices }, model, send) => (await send("choose", { question, choices: lines(choices) })).results[0],
  draw: (result, { choices }) => {
    const { choice, probabilities } = result;
    const rows = lines(choices).map((label, index) => ({ label, share: probabilities[index], chosen: index === choice }));
    return { nodes: [bars(rows)], summary: choice === null ? "Not sure: no choice is likely enough." : verdict(rows) };
  },
};
