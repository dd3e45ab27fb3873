// A text as the model gets it and gives it back: its tokens, and its vector.

import { element, number, prepare, strip } from "../inside/drawing.js";
import { largestSize } from "../inside/numbers.js";
import { floats } from "./ask.js";

const HEIGHT = 44; // pixels of the drawn vector
const FIRST = 8; // numbers that are written out
const SHOWN = 600; // tokens

export const inspect = {
  name: "inspect",
  title: "Inspect",
  ability: "embed",
  lead: "The tokens that the model reads, and the vector that it makes of them.",
  needs: "It shows tokens and vectors, with any encoder.",
  fields: [
    { name: "text", label: "Text", rows: 3 },
    { name: "pooling", label: "Pooling", kind: "choice", optional: true, options: poolings },
    { name: "layer", label: "Layer", kind: "choice", optional: true, options: layers },
  ],
  examples: [
    { text: "Unbelievably, the tokenizer knows “tokenization”." },
    { text: "Größe, naïveté, 東京 and 🙂 in one line." },
    { text: "antidisestablishmentarianism" },
  ],
  ask: async ({ text, pooling, layer }, model, send) => {
    const [tokens] = await send("tokenize", { inputs: [text] });
    const body = { inputs: [text], normalize: false, encoding_format: "base64", layers: [Number(layer)], pooling };
    const [vector] = await send("embed", body);
    return { tokens, vector: floats(vector) };
  },
  draw: ({ tokens, vector }, _, panel) => {
    const nodes = [tokenList(tokens, panel), drawn(vector, panel), figures(vector), copyButton(vector, panel)];
    return { nodes, said: `${tokens.length} tokens; a vector of ${vector.length} numbers.` };
  },
};

function poolings({ pooling, poolings: all }) {
  const own = all.includes(pooling) ? pooling : all[0];
  return [own, ...all.filter((each) => each !== own)].map((each) => [each, each === pooling ? `${each} (the model's own)` : each]);
}

function layers({ layers: depth }) {
  const name = (layer) => (layer === depth ? `${layer} (last)` : layer ? `${layer}` : "0 (embeddings)");
  return Array.from({ length: depth + 1 }, (_, n) => [`${depth - n}`, name(depth - n)]);
}

function tokenList(tokens, panel) {
  const items = tokens.slice(0, SHOWN).map((token, at) => {
    const where = token.special ? "added by the tokenizer" : `characters ${token.start} to ${token.stop}`;
    const tell = () => panel.say(`Token ${at}: ${token.text}, number ${token.id} of the vocabulary, ${where}.`);
    const parts = [element("bdi", {}, token.text), element("small", {}, `${token.id}`)];
    const made = element("button", { type: "button", onclick: tell, onfocus: tell, onmouseenter: tell }, ...parts);
    return element("li", { class: token.special ? "special" : null }, made);
  });
  const more = tokens.length > SHOWN ? [element("li", { class: "special" }, `and ${tokens.length - SHOWN} more`)] : [];
  return element("ol", { class: "tokens", "aria-label": "tokens" }, ...items, ...more);
}

/** The vector as a strip of colors: blue above zero, orange below. */
function drawn(vector, panel) {
  const canvas = element("canvas", { class: "vector", role: "img", "aria-label": `a vector of ${vector.length} numbers` });
  const most = Math.max(largestSize(vector), 1e-9);
  const draw = () => {
    const width = canvas.parentElement.clientWidth;
    strip(prepare(canvas, width, HEIGHT), vector, { x: 0, y: 0, width, height: HEIGHT, most });
  };
  canvas.addEventListener("mousemove", ({ offsetX }) => {
    const at = Math.min(vector.length - 1, Math.max(0, Math.floor((offsetX / canvas.clientWidth) * vector.length)));
    panel.say(`Number ${at}: ${number(vector[at], 5)}`);
  });
  const frame = element("div", { class: "frame" }, canvas);
  new ResizeObserver(draw).observe(frame);
  return frame;
}

function figures(vector) {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  const first = Array.from(vector.slice(0, FIRST), (value) => number(value)).join("  ");
  const rows = { numbers: `${vector.length}`, length: number(length), first: `${first}${vector.length > FIRST ? "  …" : ""}` };
  const pairs = Object.entries(rows).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  return element("dl", { class: "facts" }, ...pairs);
}

function copyButton(vector, panel) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(JSON.stringify(Array.from(vector)));
      panel.say("The vector is copied.");
    } catch {
      panel.say("This browser does not let the page copy; the command below gives the same numbers.");
    }
  };
  return element("div", { class: "actions" }, element("button", { type: "button", class: "quiet", onclick: copy }, "Copy the vector"));
}
