// A number for each word, as the color of the word.

import { element, number } from "../inside/drawing.js";
import { marked } from "./parts.js";

export const tool = {
  name: "rate-words",
  title: "Rate words",
  verb: "Rate",
  ability: "rate-words",
  lead: "A number for each word, such as its reading time or complexity; high ones have the stronger color.",
  needs: "a word-rating model",
  how: "Fine-tune one on a file with a word and its number on each line:",
  command: "bertkit finetune rate-words --train train.conll --out my-ratings",
  fields: [{ name: "text", label: "Text", rows: 4 }],
  examples: [
    { title: "Long words", text: "The committee deliberated at length." },
    { title: "Short words", text: "A cat sat on the mat and looked at the moon." },
    { title: "Science", text: "Photosynthesis converts sunlight into chemical energy." },
  ],
  ask: async ({ text }, model, send) => (await send("rate-words", { texts: [text] })).results[0],
  draw: ({ words, values, characters }, { text }) => {
    const [minimum, maximum] = [Math.min(...values), Math.max(...values)];
    const share = (value) => (maximum > minimum ? (value - minimum) / (maximum - minimum) : 0);
    const spans = characters.map(([start, end], index) => ({
      start, end, make: (word) => ratedWord(word, values[index], share(values[index])),
    }));
    return { nodes: [marked(text, spans)], summary: sentence(words, values) };
  },
};

function ratedWord(word, value, share) {
  const mark = element("mark", { class: "tagged", title: number(value) }, word, element("small", {}, number(value)));
  mark.style.setProperty("--hue", Math.round(215 - 215 * share));
  return mark;
}

function sentence(words, values) {
  if (!words.length) return "There is no word.";
  const highest = values.indexOf(Math.max(...values));
  return `The highest number, ${number(values[highest])}, is that of “${words[highest]}”.`;
}
