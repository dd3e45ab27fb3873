// Search pasted lines by meaning.

import { element, number } from "../inside/drawing.js";
import { bars, lines, short } from "./parts.js";
import { FOR_SENTENCES, cosine, vectors } from "./vectors.js";

const MOST = 2_000; // lines
const SHOWN = 20; // results
const LINES = [
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
  lead: "Paste lines and search them by meaning, not by words. Each line is read once, then only the query.",
  needs: "It searches lines by meaning, with any encoder.",
  fields: [
    { name: "query", label: "Query", kind: "line", wanted: "type what you look for" },
    { name: "texts", label: "Lines to search", rows: 8, wanted: "paste some lines" },
  ],
  examples: [
    { query: "taking my pet for a walk", texts: LINES },
    { query: "when does the boat leave", texts: LINES },
    { query: "recycling used electronics", texts: LINES },
    { query: "a cheap day out with the kids", texts: LINES },
  ],
  wanting: ({ texts }) => {
    const count = lines(texts).length;
    const [given, most] = [count, MOST].map((each) => each.toLocaleString("en"));
    return count > MOST ? `These are ${given} lines; the page takes ${most}. Leave some out.` : null;
  },
  ask: async ({ query, texts }, model, send, tell) => {
    const own = [...new Set(lines(texts))];
    const [first, ...rest] = await vectors([query.trim(), ...own], model, send, tell);
    return own.map((text, n) => ({ text, score: cosine(first, rest[n]) })).sort((one, other) => other.score - one.score);
  },
  draw: (found) => {
    const row = ({ text, score }, at) => ({ label: text, share: score, shown: number(score, 2), chosen: at === 0 });
    const rows = found.slice(0, SHOWN).map(row);
    const more = found.length > SHOWN ? [element("p", { class: "note" }, `The first ${SHOWN} of ${found.length} lines.`)] : [];
    return { nodes: [bars(rows), ...more], said: `Nearest: ${short(found[0].text, 120)}` };
  },
};
