// Texts on a plane: the two directions in which their embeddings differ most (principal component analysis).

import { element, number } from "../inside/drawing.js";
import { percent, short } from "./parts.js";
import { cosine } from "./vectors.js";

const ITERATIONS = 200; // of the power method: the order of points is settled long before
const MAX_NAMED = 40; // points up to which each shows its text

/** The map; `say(text)` tells which text a point is, when it is touched or reached by the keyboard. */
export function pointMap(texts, vectors, say) {
  const { points, kept } = plane(vectors);
  const items = points.map(([x, y], index) => point(texts[index], index, x, y, texts.length <= MAX_NAMED, say));
  const about = `Near points are similar. The map keeps ${percent(kept)} of the differences between the texts (PCA).`;
  const list = element("ol", { "aria-label": "map of the texts" }, ...items);
  new ResizeObserver(() => nameApart(items)).observe(list);
  return element("figure", { class: texts.length > MAX_NAMED ? "map many" : "map" }, list, element("figcaption", {}, about));
}

/** Hide the names that would lie on another point or name; the numbers stay. */
function nameApart(items) {
  for (const item of items) item.classList.remove("unnamed");
  const box = (item, part) => item.querySelector(part)?.getBoundingClientRect();
  const taken = items.map((item) => [item, box(item, "span")]);
  for (const [item, name] of items.map((each) => [each, box(each, "bdi")])) {
    const covers = name && taken.some(([other, area]) => other !== item && overlap(name, area));
    item.classList.toggle("unnamed", Boolean(covers));
    if (name && !covers) taken.push([item, name]);
  }
}

function overlap(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

function point(text, index, x, y, named, say) {
  const tell = () => say(`${index + 1}: ${text}`);
  const name = named ? [element("bdi", {}, short(text, 30))] : [];
  const handlers = { onfocus: tell, onclick: tell, onmouseenter: tell };
  const button = element("button", { type: "button", "aria-label": `${index + 1}: ${short(text)}`, ...handlers }, element("span", {}, `${index + 1}`), ...name);
  const item = element("li", { class: x > 0.6 ? "left" : null }, button);
  item.style.setProperty("--x", number(x, 4));
  item.style.setProperty("--y", number(1 - y, 4));
  return item;
}

/** {points: [x, y] from 0 to 1 for each vector, kept: the share of the variance along the two directions}. */
export function plane(vectors) {
  const gram = centered(vectors.map((one) => vectors.map((other) => cosine(one, other))));
  const total = gram.reduce((sum, row, n) => sum + row[n], 0) || 1;
  const first = direction(gram);
  const second = direction(gram.map((row, i) => row.map((value, j) => value - first.value * first.vector[i] * first.vector[j])));
  const axes = [first, second].map(({ value, vector }) => scaled(vector.map((each) => each * Math.sqrt(Math.max(value, 0)))));
  return { points: vectors.map((_, n) => axes.map((axis) => axis[n])), kept: Math.min(1, (first.value + Math.max(second.value, 0)) / total) };
}

/** Inner products of the vectors minus their mean. */
function centered(gram) {
  const means = gram.map((row) => row.reduce((sum, value) => sum + value, 0) / row.length);
  const mean = means.reduce((sum, value) => sum + value, 0) / means.length;
  return gram.map((row, i) => row.map((value, j) => value - means[i] - means[j] + mean));
}

/** The largest eigenvalue and its vector, by the power method; its largest component is positive. */
function direction(matrix) {
  let vector = matrix.map((_, n) => Math.cos(n * 2.4) + 0.1); // not in any special direction
  let value = 0;
  for (let n = 0; n < ITERATIONS; n++) {
    const next = matrix.map((row) => row.reduce((sum, each, j) => sum + each * vector[j], 0));
    value = Math.hypot(...next);
    if (value < 1e-12) return { value: 0, vector: vector.map(() => 0) };
    vector = next.map((each) => each / value);
  }
  const largest = vector.reduce((best, each) => (Math.abs(each) > Math.abs(best) ? each : best));
  return { value, vector: vector.map((each) => each * Math.sign(largest)) };
}

function scaled(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return values.map((value) => (most - least > 1e-9 ? (value - least) / (most - least) : 0.5));
}
