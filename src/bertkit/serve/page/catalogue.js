// What each head mostly looks at in one text: the twin of inside/look/heads.py, over the weights that the server sent.

const MOST = 0.5; // a head is named for what gets more than half of its weight
const BROAD = 0.8; // or, when its entropy is this share of the largest possible, it is broad
const SHARES = ["next", "previous", "itself", "first", "separator", "same_word"];

/** A row for each head of each layer; `weights` holds for every layer heads × length × length numbers. */
export function catalogue(weights, heads, { ids, special }) {
  const rows = looking(special);
  const again = ids.map((id) => ids.indexOf(id) !== ids.lastIndexOf(id));
  return weights.flatMap((all, layer) =>
    Array.from({ length: heads }, (_, head) => {
      const sums = measure(all.subarray(head * ids.length ** 2, (head + 1) * ids.length ** 2), rows, ids, special);
      return named(layer + 1, head + 1, means(sums, rows.length, rows.filter((row) => again[row]).length, ids.length));
    }),
  );
}

/** The tokens whose looks are counted; an empty text has only special tokens. */
function looking(special) {
  const all = [...special.keys()];
  const real = all.filter((place) => !special[place]);
  return real.length ? real : all;
}

function measure(weights, rows, ids, special) {
  const sums = Object.fromEntries([...SHARES, "entropy", "distance"].map((name) => [name, 0]));
  for (const row of rows) {
    for (let column = 0; column < ids.length; column++) {
      const weight = weights[row * ids.length + column];
      const ahead = column - row;
      if (weight > 0) sums.entropy -= weight * Math.log2(weight);
      sums.distance += weight * Math.abs(ahead);
      if (ahead === 1) sums.next += weight;
      if (ahead === -1) sums.previous += weight;
      if (ahead === 0) sums.itself += weight;
      else if (ids[column] === ids[row]) sums.same_word += weight;
      if (column === 0) sums.first += weight;
      else if (special[column]) sums.separator += weight;
    }
  }
  return sums;
}

function means(sums, count, repeated, length) {
  const found = Object.fromEntries(Object.entries(sums).map(([name, sum]) => [name, sum / Math.max(count, 1)]));
  found.same_word = sums.same_word / Math.max(repeated, 1);
  found.breadth = found.entropy / Math.max(Math.log2(length), 1e-9);
  return found;
}

function named(layer, head, row) {
  const most = SHARES.reduce((best, name) => (row[name] > row[best] ? name : best));
  const kind = row[most] > MOST ? most : row.breadth >= BROAD ? "broad" : "mixed";
  return { layer, head, kind, ...row };
}
