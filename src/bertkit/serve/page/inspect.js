// The tokens of a text, and its embedding.

import { element, number, prepare, strip } from "../inside/drawing.js";
import { largestSize } from "../inside/numbers.js";
import { floats } from "./ask.js";
import { copyButton } from "./copy.js";

const STRIP_HEIGHT = 44; // pixels of the drawn vector
const SHOWN_NUMBERS = 8; // leading ones, as text
const SHOWN_TOKENS = 600;

export const inspect = {
  name: "inspect",
  title: "Inspect",
  ability: "embed",
  lead: "The tokens that the model reads, and the embedding that it computes.",
  needs: "an encoder",
  fields: [
    { name: "text", label: "Text", rows: 3 },
    { name: "pooling", label: "Pooling", kind: "choice", optional: true, options: poolings },
    { name: "layer", label: "Layer", kind: "choice", optional: true, options: layers },
  ],
  examples: [
    { title: "Word pieces", text: "Unbelievably, the tokenizer knows “tokenization”." },
    { title: "Many scripts", text: "Größe, naïveté, 東京 and 🙂 in one line." },
    { title: "A long word", text: "antidisestablishmentarianism" },
  ],
  ask: async ({ text, pooling, layer }, model, send) => {
    const [tokens] = await send("tokenize", { inputs: [text] });
    const body = { inputs: [text], normalize: false, encoding_format: "base64", layers: [Number(layer)], pooling };
    const [vector] = await send("embed", body);
    return { tokens, vector: floats(vector) };
  },
  draw: ({ tokens, vector }, _, panel) => {
    const nodes = [tokenList(tokens, panel), vectorStrip(vector, panel), facts(vector), copyVector(vector)];
    return { nodes, summary: `${tokens.length} tokens; a vector of ${vector.length} numbers.` };
  },
};

function poolings({ pooling, poolings: all }) {
  const first = all.includes(pooling) ? pooling : all[0];
  const names = [first, ...all.filter((name) => name !== first)];
  return names.map((name) => [name, name === pooling ? `${name} (the model's own)` : name]);
}

function layers({ layers: depth }) {
  const name = (layer) => (layer === depth ? `${layer} (last)` : layer ? `${layer}` : "0 (embeddings)");
  return Array.from({ length: depth + 1 }, (_, n) => [`${depth - n}`, name(depth - n)]);
}

function tokenList(tokens, panel) {
  const items = tokens.slice(0, SHOWN_TOKENS).map((token, index) => {
    const origin = token.special ? "added by the tokenizer" : `characters ${token.start} to ${token.stop}`;
    const describe = () => panel.say(`Token ${index}: ${token.text}, id ${token.id}, ${origin}.`);
    const parts = [element("bdi", {}, token.text), element("small", {}, `${token.id}`)];
    const handlers = { onclick: describe, onfocus: describe, onmouseenter: describe };
    const button = element("button", { type: "button", ...handlers }, ...parts);
    return element("li", { class: token.special ? "special" : null }, button);
  });
  const hidden = tokens.length - SHOWN_TOKENS;
  const more = hidden > 0 ? [element("li", { class: "special" }, `and ${hidden} more`)] : [];
  return element("ol", { class: "tokens", "aria-label": "tokens" }, ...items, ...more);
}

/** The vector as a strip of colors: blue above zero, orange below. */
function vectorStrip(vector, panel) {
  const canvas = element("canvas", { class: "vector", role: "img", "aria-label": `a vector of ${vector.length} numbers` });
  const most = Math.max(largestSize(vector), 1e-9);
  const draw = () => {
    const width = canvas.parentElement.clientWidth;
    strip(prepare(canvas, width, STRIP_HEIGHT), vector, { x: 0, y: 0, width, height: STRIP_HEIGHT, most });
  };
  canvas.addEventListener("mousemove", ({ offsetX }) => {
    const index = Math.min(vector.length - 1, Math.max(0, Math.floor((offsetX / canvas.clientWidth) * vector.length)));
    panel.say(`Number ${index}: ${number(vector[index], 5)}`);
  });
  const frame = element("div", { class: "frame" }, canvas);
  new ResizeObserver(draw).observe(frame);
  return frame;
}

function facts(vector) {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  const first = Array.from(vector.slice(0, SHOWN_NUMBERS), (value) => number(value)).join("  ");
  const rows = { numbers: `${vector.length}`, length: number(length), first: `${first}${vector.length > SHOWN_NUMBERS ? "  …" : ""}` };
  const pairs = Object.entries(rows).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  return element("dl", { class: "facts" }, ...pairs);
}

function copyVector(vector) {
  return element("div", { class: "actions" }, copyButton("Copy the vector", () => JSON.stringify(Array.from(vector))));
}
