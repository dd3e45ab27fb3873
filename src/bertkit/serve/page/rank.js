// Which lines answer a query best, by a model that reads the query and a line together.

import { number } from "../inside/drawing.js";
import { bars, lines, short } from "./parts.js";

const OPENING = "The library opens at nine.\nIts oldest book was printed in 1482.\nBicycles are left at the gate.";

export const tool = {
  name: "rank",
  title: "Rank",
  ability: "rank",
  lead: "Which lines answer a query best; the query and each line are read together. Bars go from the lowest score to the highest.",
  needs: "a ranking model",
  how: "Fine-tune one on queries with texts and how relevant each is:",
  command: "bertkit finetune rank --train train.jsonl --out my-ranking",
  fields: [
    { name: "query", label: "Query", kind: "line", hint: "type what you look for" },
    { name: "texts", label: "Texts, one on each line", rows: 6, lines: true, hint: "paste some lines" },
  ],
  examples: [
    { title: "Opening hours", query: "When does the library open?", texts: OPENING },
    { title: "An old book", query: "How old is the oldest book?", texts: OPENING },
  ],
  ask: async ({ query, texts }, model, send) => (await send("rank", { query, texts: lines(texts) })).results[0],
  draw: (ranked) => {
    const [high, low] = [ranked[0].score, ranked.at(-1).score];
    const share = (score) => (high > low ? (score - low) / (high - low) : 1);
    const row = ({ text, score }, index) => ({ label: text, share: share(score), shown: number(score, 3), chosen: index === 0 });
    return { nodes: [bars(ranked.map(row))], summary: `First: ${short(ranked[0].text, 120)}` };
  },
};
