// From the server's replies to what the views of `bertkit look` take (see inside/look/data.py, whose twin this is).

import { floats } from "./ask.js";
import { catalogue } from "./catalogue.js";

const THUMBNAIL = 32; // pixels

/** One text, or a pair, layer by layer: a whole model at once may be more than one reply holds. */
export async function reading(text, pair, model, send, tell) {
  const layers = [];
  let said = null;
  for (let layer = 1; layer <= model.layers; layer++) {
    tell(`Layer ${layer} of ${model.layers} …`);
    said = await send("neuron", { text, pair, layer, encoding_format: "base64" });
    layers.push(layerOf(said));
  }
  const movement = await turns(text, pair, said, model, send);
  const { heads, width, family } = model;
  return {
    model: `${model.id}: ${family}, ${layers.length} layers of ${width}, ${heads} heads`,
    text, pair, cutFrom: null, tokens: said.tokens, parts: said.segments, heads, precision: "float32",
    layers: layers.map(({ weights, ...layer }) => layer),
    thumbnails: thumbnails(layers, heads, said.tokens.length),
    movement,
    lens: null, // the server reads its heads off the last layer only
    catalogue: catalogue(layers.map(({ weights }) => weights), heads, said),
  };
}

/** One layer's queries and keys side by side, the normalizer of every row, and how far it sees. */
function layerOf({ layers: [layer], heads, tokens }) {
  const [weights, queries, keys] = [layer.weights, layer.queries, layer.keys].map(floats);
  const length = tokens.length;
  const width = queries.length / (heads.length * length);
  const both = new Float32Array(2 * queries.length);
  both.set(queries);
  both.set(keys, queries.length);
  return {
    weights,
    ...sight(weights, length),
    queriesKeys: { shape: [2, heads.length, length, width], values: both },
    normalizers: { shape: [heads.length, length], values: normalizers(weights, queries, keys, length, width) },
  };
}

/** The farthest that any weight reaches, and whether none reaches ahead: beyond it all are 0, whatever the reason. */
function sight(weights, length) {
  let most = 0;
  let causal = true;
  for (let n = 0; n < weights.length; n++) {
    const ahead = (n % length) - (Math.floor(n / length) % length);
    if (weights[n] > 0) most = Math.max(most, Math.abs(ahead));
    if (weights[n] > 0 && ahead > 0) causal = false;
  }
  return { radius: most === length - 1 ? null : most, causal };
}

/** weight = exp(q · k / √width − normalizer), so each row's largest weight tells its normalizer. */
function normalizers(weights, queries, keys, length, width) {
  const found = new Float32Array(queries.length / width);
  for (let row = 0; row < found.length; row++) {
    const head = Math.floor(row / length);
    let best = 0;
    for (let to = 1; to < length; to++) if (weights[row * length + to] > weights[row * length + best]) best = to;
    let score = 0;
    for (let n = 0; n < width; n++) score += queries[row * width + n] * keys[(head * length + best) * width + n];
    found[row] = score / Math.sqrt(width) - Math.log(weights[row * length + best]);
  }
  return found;
}

/** A byte for each patch of each head: the root of its largest weight, so that faint ones show. */
function thumbnails(layers, heads, length) {
  const size = Math.min(THUMBNAIL, length);
  const edges = Array.from({ length: size }, (_, n) => [Math.floor((n * length) / size), Math.ceil(((n + 1) * length) / size)]);
  const values = new Uint8Array(layers.length * heads * size * size);
  let at = 0;
  for (const { weights } of layers) {
    for (let head = 0; head < heads; head++) {
      for (const rows of edges) for (const columns of edges) values[at++] = patch(weights, head * length, length, rows, columns);
    }
  }
  return { shape: [layers.length, heads, size, size], values };
}

function patch(weights, start, length, [top, bottom], [left, right]) {
  let most = 0;
  for (let row = top; row < bottom; row++) {
    for (let column = left; column < right; column++) most = Math.max(most, weights[(start + row) * length + column]);
  }
  return Math.round(Math.sqrt(most) * 255);
}

/** How each token's vector turns from layer to layer; null where its tokens are not those of the reading. */
async function turns(text, pair, { ids }, model, send) {
  const layers = Array.from({ length: model.layers + 1 }, (_, layer) => layer);
  const inputs = pair === null ? [ids] : [`${text} ||| ${pair}`]; // ids are exact; but they do not say which text they are of
  const [reply] = await send("embed_all", { inputs, pairs: pair !== null, layers, encoding_format: "base64" });
  const states = floats(reply);
  return states.length === ids.length * layers.length * model.width ? turned(states, ids.length, layers.length, model.width) : null;
}

/** `states` are length × layers × width. */
function turned(states, length, layers, width) {
  for (let start = 0; start < states.length; start += width) {
    const own = states.subarray(start, start + width);
    const size = Math.sqrt(own.reduce((sum, value) => sum + value * value, 0)) || 1;
    for (let n = 0; n < width; n++) own[n] /= size;
  }
  const vector = (token, layer) => states.subarray((token * layers + layer) * width, (token * layers + layer + 1) * width);
  const values = new Float32Array(length * layers * layers);
  for (let at = 0; at < values.length; at++) {
    const token = Math.floor(at / (layers * layers));
    const [one, other] = [vector(token, Math.floor(at / layers) % layers), vector(token, at % layers)];
    values[at] = one.reduce((sum, value, n) => sum + value * other[n], 0);
  }
  const likeness = Array.from({ length: layers }, (_, layer) => alike(length, width, (token) => vector(token, layer)));
  return { cosines: { shape: [length, layers, layers], values }, likeness };
}

/** The mean cosine of two different tokens: the square of the sum holds every pair twice and each token once. */
function alike(length, width, vector) {
  const sum = new Float64Array(width);
  for (let token = 0; token < length; token++) vector(token).forEach((value, n) => { sum[n] += value; });
  const pairs = sum.reduce((total, value) => total + value * value, 0) - length;
  return pairs / Math.max(length * (length - 1), 1);
}
