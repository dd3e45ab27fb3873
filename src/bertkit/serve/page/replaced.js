// How probable it is that each word was replaced, as the color of the word.

import { element } from "../inside/drawing.js";
import { marked, percent } from "./parts.js";

export const tool = {
  name: "replaced",
  title: "Replaced",
  verb: "Judge",
  ability: "replaced",
  lead: "Put a wrong word into a text, and the model says which one was replaced; such words have the stronger color.",
  needs: "an ELECTRA model",
  how: "Serve one that was pre-trained with the objective rtd and kept that head, such as ELECTRA's discriminator:",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { title: "No wrong word", text: "The chef ate the meal that he had cooked for them." },
    { title: "Bananas", text: "Paris is the capital of bananas." },
    { title: "Kilometers", text: "She put the cake in the oven and set the oven to 200 kilometers." },
  ],
  ask: async ({ text }, model, send) => (await send("replaced", { text })).results[0],
  draw: (words, { text }) => {
    const spans = words.map(({ start, end, probability }) => ({ start, end, make: (word) => judged(word, probability) }));
    return { nodes: [marked(text, spans)], summary: sentence(words) };
  },
};

function judged(word, probability) {
  const mark = element("mark", { class: "tagged", title: percent(probability) }, word, element("small", {}, percent(probability)));
  mark.style.setProperty("--hue", Math.round(215 - 215 * probability));
  return mark;
}

function sentence(words) {
  const replaced = words.filter(({ probability }) => probability >= 0.5).map(({ word }) => `“${word}”`);
  return replaced.length ? `Probably replaced: ${replaced.join(", ")}.` : "No word looks replaced.";
}
