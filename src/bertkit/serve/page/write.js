// Text to text: a prompt continued, or a source rewritten.

import { element } from "../inside/drawing.js";
import { seenNotes } from "./parts.js";

export const tool = {
  name: "write",
  title: "Write",
  ability: "write",
  live: false,
  lead: "The model writes: a decoder goes on with your text, an encoder-decoder writes another one, such as its translation.",
  needs: "It writes text, with a model from “bertkit finetune write” or one that was pre-trained from left to right.",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { text: "Two dogs play in the snow." },
    { text: "Once upon a time" },
    { text: "2 March 1999" },
  ],
  ask: async ({ text }, model, send) => (await send("write", { texts: [text] })).results[0],
  draw: ({ text, tokens, ended, seen }) => {
    const end = ended ? "" : " It stopped at the limit of tokens.";
    const written = element("p", { class: "passage", dir: "auto" }, text);
    return { nodes: [...seenNotes(seen), written], summary: `${tokens} tokens.${end}` };
  },
};
