// Whether one text follows another, as next sentence prediction and sentence order learn it.

import { bars, verdict } from "./parts.js";

export const tool = {
  name: "follows",
  title: "Follows",
  verb: "Compare",
  ability: "follows",
  lead: "Two texts, and the model says whether the second follows the first, as its pre-training on pairs asked.",
  needs: "a model trained on pairs",
  how: "Serve one that was pre-trained with the objective nsp or sop and kept that head:",
  fields: [
    { name: "first", label: "First text", rows: 3 },
    { name: "second", label: "Second text", rows: 3 },
  ],
  examples: [
    { title: "It follows", first: "She opened the door.", second: "The room was empty." },
    { title: "The other way round", first: "The room was empty.", second: "She opened the door." },
    { title: "Another subject", first: "She opened the door.", second: "Potassium is a soft metal." },
  ],
  ask: async ({ first, second }, model, send) => (await send("follows", { first, second })).results[0],
  draw: (probability) => {
    const rows = [{ label: "follows", share: probability, chosen: probability >= 0.5 }, { label: "does not", share: 1 - probability }];
    return { nodes: [bars(rows)], summary: verdict(rows) };
  },
};
