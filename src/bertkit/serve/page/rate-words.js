// A number for each word: the higher, the darker the word's color.

import { element, number } from "../inside/drawing.js";
import { marked, seenNotes } from "./parts.js";

export const tool = {
  name: "rate-words",
  title: "Rate words",
  verb: "Rate",
  ability: "rate-words",
  lead: "A number for each word, such as its reading time or complexity; high ones have the stronger color.",
  needs: "It gives every word a number, with a model from “bertkit finetune rate-words”.",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { text: "The committee deliberated at length." },
    { text: "A cat sat on the mat and looked at the moon." },
    { text: "Photosynthesis converts sunlight into chemical energy." },
  ],
  ask: async ({ text }, model, send) => (await send("rate-words", { texts: [text] })).results[0],
  draw: ({ words, values, characters, seen }, { text }) => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const share = (value) => (most > least ? (value - least) / (most - least) : 0);
    const stretches = characters.map(([start, end], at) => ({
      start, end, make: (written) => rated(written, values[at], share(values[at])),
    }));
    return { nodes: [...seenNotes(seen), marked(text, stretches)], said: sentence(words, values) };
  },
};

function rated(written, value, share) {
  const made = element("mark", { class: "tagged", title: number(value) }, written, element("small", {}, number(value)));
  made.style.setProperty("--hue", Math.round(215 - 215 * share));
  return made;
}

function sentence(words, values) {
  if (!words.length) return "There is no word.";
  const at = values.indexOf(Math.max(...values));
  return `The highest number, ${number(values[at])}, is that of “${words[at]}”.`;
}
