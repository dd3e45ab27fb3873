// The numbers of a page: arrays are unpacked when first used, attention weights are computed on demand.

const READERS = {
  uint8: (buffer) => new Uint8Array(buffer),
  uint32: (buffer) => new Uint32Array(buffer),
  float32: (buffer) => new Float32Array(buffer),
  float16: (buffer) => fromFloat16(new Uint16Array(buffer)),
};
const SIZES = { uint8: 1, float16: 2, uint32: 4, float32: 4 };

/** Unpack {dtype, shape, data} to {shape, values}: base64, inflate, join byte planes. */
export async function unpack({ dtype, shape, data, values }) {
  if (values) return { shape, values }; // plain numbers, as the page of `bertkit serve` has them
  const planes = await inflate(fromBase64(data));
  return { shape, values: READERS[dtype](joinPlanes(planes, SIZES[dtype]).buffer) };
}

export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text); // a loop, because a callback for each of two million letters is slow
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function joinPlanes(planes, size) {
  const count = planes.length / size;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane++) {
    for (let i = 0, from = plane * count; i < count; i++) bytes[i * size + plane] = planes[from + i];
  }
  return bytes;
}

let float16Values = null; // the value of each of the 65,536 float16 bit patterns

function fromFloat16(bits) {
  float16Values ??= Float32Array.from({ length: 65536 }, (_, pattern) => float16Value(pattern));
  const out = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) out[i] = float16Values[bits[i]];
  return out;
}

function float16Value(pattern) {
  const sign = pattern & 32768 ? -1 : 1;
  const exponent = (pattern >> 10) & 31;
  const fraction = pattern & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** The queries and keys of one layer, and the attention weights computed from them. */
export class Layer {
  static async read({ radius, causal, queriesKeys, normalizers, weights }) {
    const matrix = weights ? new Matrix(await unpack(weights)) : null;
    if (!queriesKeys) return matrix;
    const [both, sums] = await Promise.all([unpack(queriesKeys), unpack(normalizers)]);
    const layer = new Layer(both, sums.values, radius, causal);
    if (matrix) { // relative positions are in these weights, and not in queries and keys
      layer.row = (head, from) => matrix.row(head, from);
      layer.column = (head, to) => matrix.column(head, to);
    }
    return layer;
  }

  constructor({ shape, values }, normalizers, radius, causal) {
    [, this.heads, this.length, this.width] = shape;
    const half = values.length / 2;
    this.queries = values.subarray(0, half);
    this.keys = values.subarray(half);
    this.normalizers = normalizers;
    this.radius = radius ?? Infinity;
    this.causal = causal;
    this.divisor = Math.sqrt(this.width);
  }

  query(head, token) { return this.vector(this.queries, head, token); }
  key(head, token) { return this.vector(this.keys, head, token); }

  vector(all, head, token) {
    const start = this.start(head, token);
    return all.subarray(start, start + this.width);
  }

  start(head, token) { return (head * this.length + token) * this.width; }

  /** q . k, before the division. By offsets, because creating views of the vectors takes longer than the sum. */
  score(head, from, to) {
    const query = this.start(head, from);
    const key = this.start(head, to);
    let sum = 0;
    for (let n = 0; n < this.width; n++) sum += this.queries[query + n] * this.keys[key + n];
    return sum;
  }

  /** Whether a token attends to another: some layers have a window, and causal models see only earlier tokens. */
  sees(from, to) { return Math.abs(from - to) <= this.radius && (to <= from || !this.causal); }

  /** The weights of one query: the softmax of its scores. */
  row(head, from) {
    const weights = new Float64Array(this.length);
    let most = -Infinity;
    for (let to = 0; to < this.length; to++) {
      weights[to] = this.sees(from, to) ? this.score(head, from, to) / this.divisor : -Infinity;
      most = Math.max(most, weights[to]);
    }
    let sum = 0;
    for (let to = 0; to < this.length; to++) sum += weights[to] = Math.exp(weights[to] - most);
    for (let to = 0; to < this.length; to++) weights[to] /= sum;
    return weights;
  }

  /** The weights to one key, by the normalizers of the queries. */
  column(head, to) {
    const weights = new Float64Array(this.length);
    for (let from = 0; from < this.length; from++) {
      if (!this.sees(from, to)) continue;
      weights[from] = Math.exp(this.score(head, from, to) / this.divisor - this.normalizers[head * this.length + from]);
    }
    return weights;
  }
}

/** Weights that are stored: from the tokens of one text to those of another, which may be the same. */
class Matrix {
  constructor({ shape, values }) {
    [this.heads, this.length, this.others] = shape;
    this.values = values;
  }

  row(head, from) {
    const start = (head * this.length + from) * this.others;
    return Float64Array.from(this.values.subarray(start, start + this.others));
  }

  column(head, to) {
    return Float64Array.from({ length: this.length }, (_, from) => this.values[(head * this.length + from) * this.others + to]);
  }
}

/** The indices of the largest `count` numbers, largest first. */
export function largest(numbers, count) {
  const indices = [];
  for (let i = 0; i < numbers.length; i++) {
    if (indices.length === count && numbers[i] <= numbers[indices[count - 1]]) continue;
    let position = indices.length;
    while (position > 0 && numbers[indices[position - 1]] < numbers[i]) position--;
    indices.splice(position, 0, i);
    if (indices.length > count) indices.pop();
  }
  return indices;
}

/** The largest absolute value. */
export function largestSize(numbers) {
  let most = 0;
  for (const number of numbers) most = Math.max(most, Math.abs(number));
  return most;
}
