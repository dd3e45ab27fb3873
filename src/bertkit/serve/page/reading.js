// From the server's replies to the data of `bertkit look`'s views, as inside/look/data.py computes them in Python.

import { floats } from "./ask.js";
import { catalogue } from "./catalogue.js";

const THUMBNAIL_SIZE = 32; // pixels
const LENS_WORDS = 5; // for each token and layer

/** The data of one text or pair, requested layer by layer: all layers may be more than one reply may hold. */
export async function reading(text, pair, model, send, notify) {
  const layers = [];
  let reply = null;
  for (let layer = 1; layer <= model.layers; layer++) {
    notify(`Layer ${layer} of ${model.layers} …`);
    reply = await send("neuron", { text, pair, layer, encoding_format: "base64" });
    layers.push(layerOf(reply));
  }
  const movement = await tokenMovement(text, pair, reply, model, send);
  const { heads, width, family } = model;
  return {
    model: `${model.id}: ${family}, ${layers.length} layers of ${width}, ${heads} heads`,
    text, pair, cutFrom: reply.long_texts?.texts[0].tokens ?? null, tokens: reply.tokens, special: reply.special, parts: reply.segments, heads, precision: "float32",
    layers: layers.map(reply.relative ? storedWeights : withoutWeights),
    thumbnails: thumbnails(layers, heads, reply.tokens.length),
    movement,
    lens: model.abilities.includes("fill") ? await lens(text, pair, send) : null,
    catalogue: catalogue(layers.map(({ weights }) => weights), heads, reply),
  };
}

/** The words that the masked-word head predicts for each token from each layer. */
async function lens(text, pair, send) {
  const { words, probabilities } = await send("lens", { text, pair, top: LENS_WORDS });
  const shape = [words.length, words[0].length, words[0][0].length];
  const all = words.flat(2);
  const indices = new Map([...new Set(all)].map((word, index) => [word, index]));
  const best = { shape, values: Uint32Array.from(all, (word) => indices.get(word)) };
  return { words: [...indices.keys()], best, probabilities: { shape, values: Float32Array.from(probabilities.flat(2)) } };
}

/** The views compute the weights again from queries and keys. */
function withoutWeights({ weights, ...layer }) {
  return layer;
}

/** Relative positions change the weights, and are not in queries and keys. */
function storedWeights({ weights, ...layer }) {
  const [, heads, length] = layer.queriesKeys.shape;
  return { ...layer, weights: { shape: [heads, length, length], values: weights } };
}

/** One layer's queries and keys, the softmax normalizer of every row, and its attention window. */
function layerOf({ layers: [layer], heads, tokens }) {
  const [weights, queries, keys] = [layer.weights, layer.queries, layer.keys].map(floats);
  const length = tokens.length;
  const width = queries.length / (heads.length * length);
  const both = new Float32Array(2 * queries.length);
  both.set(queries);
  both.set(keys, queries.length);
  return {
    weights,
    ...attentionWindow(weights, length),
    queriesKeys: { shape: [2, heads.length, length, width], values: both },
    normalizers: { shape: [heads.length, length], values: normalizers(weights, queries, keys, length, width) },
  };
}

/** The largest distance of a weight over 0, and whether none is on a later token. */
function attentionWindow(weights, length) {
  let farthest = 0;
  let causal = true;
  for (let n = 0; n < weights.length; n++) {
    const offset = (n % length) - (Math.floor(n / length) % length);
    if (weights[n] > 0) farthest = Math.max(farthest, Math.abs(offset));
    if (weights[n] > 0 && offset > 0) causal = false;
  }
  return { radius: farthest === length - 1 ? null : farthest, causal };
}

/** weight = exp(q · k / √width − normalizer): the normalizer of each row, from its largest weight. */
function normalizers(weights, queries, keys, length, width) {
  const values = new Float32Array(queries.length / width);
  for (let row = 0; row < values.length; row++) {
    const head = Math.floor(row / length);
    let best = 0;
    for (let to = 1; to < length; to++) if (weights[row * length + to] > weights[row * length + best]) best = to;
    let score = 0;
    for (let n = 0; n < width; n++) score += queries[row * width + n] * keys[(head * length + best) * width + n];
    values[row] = score / Math.sqrt(width) - Math.log(weights[row * length + best]);
  }
  return values;
}

/** A byte for each patch of each head: the square root of its largest weight, so that small weights are visible. */
function thumbnails(layers, heads, length) {
  const size = Math.min(THUMBNAIL_SIZE, length);
  const edges = Array.from({ length: size }, (_, n) => [Math.floor((n * length) / size), Math.ceil(((n + 1) * length) / size)]);
  const values = new Uint8Array(layers.length * heads * size * size);
  let index = 0;
  for (const { weights } of layers) {
    for (let head = 0; head < heads; head++) {
      for (const rows of edges) for (const columns of edges) values[index++] = patch(weights, head * length, length, rows, columns);
    }
  }
  return { shape: [layers.length, heads, size, size], values };
}

function patch(weights, start, length, [top, bottom], [left, right]) {
  let largest = 0;
  for (let row = top; row < bottom; row++) {
    for (let column = left; column < right; column++) largest = Math.max(largest, weights[(start + row) * length + column]);
  }
  return Math.round(Math.sqrt(largest) * 255);
}

/** Cosines between each token's vectors of two layers; null if the reply's tokens are not the same. */
async function tokenMovement(text, pair, { ids }, model, send) {
  const layers = Array.from({ length: model.layers + 1 }, (_, layer) => layer);
  const inputs = pair === null ? [ids] : [`${text} ||| ${pair}`]; // ids are exact, but have no segments
  const [reply] = await send("embed_all", { inputs, pairs: pair !== null, layers, encoding_format: "base64" });
  const states = floats(reply);
  return states.length === ids.length * layers.length * model.width ? movementOf(states, ids.length, layers.length, model.width) : null;
}

/** `states` are length × layers × width. */
function movementOf(states, length, layers, width) {
  for (let start = 0; start < states.length; start += width) {
    const state = states.subarray(start, start + width);
    const norm = Math.sqrt(state.reduce((sum, value) => sum + value * value, 0)) || 1;
    for (let n = 0; n < width; n++) state[n] /= norm;
  }
  const vector = (token, layer) => states.subarray((token * layers + layer) * width, (token * layers + layer + 1) * width);
  const values = new Float32Array(length * layers * layers);
  for (let index = 0; index < values.length; index++) {
    const token = Math.floor(index / (layers * layers));
    const [one, other] = [vector(token, Math.floor(index / layers) % layers), vector(token, index % layers)];
    values[index] = one.reduce((sum, value, n) => sum + value * other[n], 0);
  }
  const likeness = Array.from({ length: layers }, (_, layer) => meanCosine(length, width, (token) => vector(token, layer)));
  return { cosines: { shape: [length, layers, layers], values }, likeness };
}

/** The mean cosine of two different tokens: the squared norm of the sum counts every pair twice and each token once. */
function meanCosine(length, width, vector) {
  const sum = new Float64Array(width);
  for (let token = 0; token < length; token++) vector(token).forEach((value, n) => { sum[n] += value; });
  const pairs = sum.reduce((total, value) => total + value * value, 0) - length;
  return pairs / Math.max(length * (length - 1), 1);
}
