// The views of `bertkit look` for the text typed here: the same modules, with data from /neuron.

import { element } from "../inside/drawing.js";
import { mount } from "../inside/look.js";
import { textAndPair } from "./form.js";
import { reading } from "./reading.js";

export const inside = {
  name: "inside",
  title: "Look inside",
  verb: "Look",
  ability: "embed",
  lead: "What every token attends to, in every head of every layer, and the queries and keys behind it.",
  needs: "an encoder",
  fields: textAndPair(2, "Second text"),
  examples: [
    { title: "What is “it”?", text: "The animal did not cross the street because it was too tired." },
    { title: "A pair", text: "A man plays the guitar on a stage.", pair: "Somebody makes music." },
    { title: "Keys … are", text: "The keys to the old cabinet are on the table." },
  ],
  live: false,
  ask: ({ text, pair }, model, send, notify) => reading(text, pair.trim() ? pair : null, model, send, notify),
  draw: (data, _, panel) => {
    const host = element("div", { id: "look" });
    panel.result.replaceChildren(host); // first into the document: the views measure their size
    mount(host, data);
    return { nodes: [host], summary: `${data.tokens.length} tokens in ${data.layers.length} layers of ${data.heads} heads.` };
  },
};
