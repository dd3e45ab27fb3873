// Text to text: a prompt continued, or a source rewritten.

import { element } from "../inside/drawing.js";

export const tool = {
  name: "write",
  title: "Write",
  ability: "write",
  live: false,
  lead: "The model writes: a decoder goes on with your text, an encoder-decoder writes another one, such as its translation.",
  needs: "a model that writes",
  how: "Serve a decoder such as GPT-2, or fine-tune one on pairs of texts:",
  command: "bertkit finetune write --train train.tsv --out my-writer",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { title: "Two dogs", text: "Two dogs play in the snow." },
    { title: "A story", text: "Once upon a time" },
    { title: "A date", text: "2 March 1999" },
  ],
  ask: async ({ text }, model, send) => (await send("write", { texts: [text] })).results[0],
  draw: ({ text, tokens, ended }) => {
    const end = ended ? "" : " It stopped at the limit of tokens.";
    const written = element("p", { class: "passage", dir: "auto" }, text);
    return { nodes: [written], summary: `${tokens} tokens.${end}` };
  },
};
