// The views of `bertkit look` for the text typed here: the same modules, fed by /neuron.

import { element } from "../inside/drawing.js";
import { mount } from "../inside/look.js";
import { textAndPair } from "./form.js";
import { reading } from "./reading.js";

export const inside = {
  name: "inside",
  title: "Look inside",
  verb: "Look",
  ability: "embed",
  lead: "What every token looks at, in every head of every layer, and the numbers behind it.",
  needs: "It shows attention, with any encoder.",
  fields: textAndPair(2, "Second text"),
  examples: [
    { text: "The animal did not cross the street because it was too tired." },
    { called: "A pair", text: "A man plays the guitar on a stage.", pair: "Somebody makes music." },
    { text: "The keys to the old cabinet are on the table." },
  ],
  live: false,
  ask: ({ text, pair }, model, send, tell) => reading(text, pair.trim() ? pair : null, model, send, tell),
  draw: (data, _, panel) => {
    const host = element("div", { id: "look" });
    panel.result.replaceChildren(host); // the views measure themselves, so they need their place first
    mount(host, data);
    return { nodes: [host], said: `${data.tokens.length} tokens in ${data.layers.length} layers of ${data.heads} heads.` };
  },
};
