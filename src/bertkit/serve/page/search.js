// Semantic search over pasted lines.

import { element, number } from "../inside/drawing.js";
import { bars, lines, short } from "./parts.js";
import { FOR_SENTENCES, cosine, vectors } from "./vectors.js";

const MAX_LINES = 2_000;
const SHOWN_RESULTS = 20;
const EXAMPLE_LINES = [
  "The library opens at nine and closes at six.",
  "Bicycles may be taken on trains outside the rush hour.",
  "Mushrooms should be cooked soon after they are picked.",
  "The museum is free for children under twelve.",
  "Water the tomatoes in the morning, never on the leaves.",
  "Tickets can be returned up to an hour before the show.",
  "The last ferry to the island leaves at half past ten.",
  "Old batteries are taken back where new ones are sold.",
  "Bake the bread until its crust sounds hollow.",
  "Dogs must be kept on a leash in the park.",
].join("\n");

export const search = {
  name: "search",
  title: "Search",
  ...FOR_SENTENCES,
  lead: "Paste lines and search them by meaning, not by words. Bars go from the least similar line to the most similar.",
  needs: "an encoder",
  fields: [
    { name: "query", label: "Query", kind: "line", hint: "type what you look for" },
    { name: "texts", label: "Lines to search", rows: 8, lines: true, hint: "paste some lines" },
  ],
  examples: [
    { title: "The boat", query: "when does the boat leave", texts: EXAMPLE_LINES },
    { title: "Books", query: "when can I borrow books", texts: EXAMPLE_LINES },
    { title: "A pet", query: "taking my pet for a walk", texts: EXAMPLE_LINES },
    { title: "A refund", query: "can I get my money back", texts: EXAMPLE_LINES },
  ],
  missing: ({ texts }) => {
    const count = lines(texts).length;
    const [pasted, limit] = [count, MAX_LINES].map((lineCount) => lineCount.toLocaleString("en"));
    return count > MAX_LINES ? `These are ${pasted} lines; the page takes ${limit}. Leave some out.` : null;
  },
  ask: async ({ query, texts }, model, send, notify) => {
    const unique = [...new Set(lines(texts))];
    const [first, ...rest] = await vectors([query.trim(), ...unique], model, send, notify);
    return unique.map((text, n) => ({ text, score: cosine(first, rest[n]) })).sort((one, other) => other.score - one.score);
  },
  draw: (results) => {
    const [high, low] = [results[0].score, results.at(-1).score];
    const share = (score) => (high > low ? (score - low) / (high - low) : 1);
    const row = ({ text, score }, index) => ({ label: text, share: share(score), shown: number(score, 2), chosen: index === 0 });
    const rows = results.slice(0, SHOWN_RESULTS).map(row);
    const hidden = results.length > SHOWN_RESULTS;
    const more = hidden ? [element("p", { class: "note" }, `The first ${SHOWN_RESULTS} of ${results.length} lines.`)] : [];
    return { nodes: [bars(rows), ...more], summary: `Nearest: ${short(results[0].text, 120)}` };
  },
};
