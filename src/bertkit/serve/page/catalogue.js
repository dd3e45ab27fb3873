// What each head mostly attends to in one text: as inside/look/heads.py, over the weights that the server sent.

const MIN_SHARE = 0.5; // of a head's weight, to be named for it
const BROAD_ENTROPY = 0.8; // share of the largest possible entropy from which a head is called broad
const KINDS = ["next", "previous", "itself", "first", "separator", "same_word"];

/** A row for each head of each layer; `weights` holds for every layer heads × length × length numbers. */
export function catalogue(weights, heads, { ids, special }) {
  const rows = queryTokens(special);
  const repeated = ids.map((id) => ids.indexOf(id) !== ids.lastIndexOf(id));
  return weights.flatMap((all, layer) =>
    Array.from({ length: heads }, (_, head) => {
      const sums = measure(all.subarray(head * ids.length ** 2, (head + 1) * ids.length ** 2), rows, ids, special);
      return named(layer + 1, head + 1, means(sums, rows.length, rows.filter((row) => repeated[row]).length, ids.length));
    }),
  );
}

/** The tokens whose attention is counted: all but special tokens, if there are any. */
function queryTokens(special) {
  const all = [...special.keys()];
  const words = all.filter((index) => !special[index]);
  return words.length ? words : all;
}

function measure(weights, rows, ids, special) {
  const sums = Object.fromEntries([...KINDS, "entropy", "distance"].map((name) => [name, 0]));
  for (const row of rows) {
    for (let column = 0; column < ids.length; column++) {
      const weight = weights[row * ids.length + column];
      const offset = column - row;
      if (weight > 0) sums.entropy -= weight * Math.log2(weight);
      sums.distance += weight * Math.abs(offset);
      if (offset === 1) sums.next += weight;
      if (offset === -1) sums.previous += weight;
      if (offset === 0) sums.itself += weight;
      else if (ids[column] === ids[row]) sums.same_word += weight;
      if (column === 0) sums.first += weight;
      else if (special[column]) sums.separator += weight;
    }
  }
  return sums;
}

function means(sums, count, repeated, length) {
  const row = Object.fromEntries(Object.entries(sums).map(([name, sum]) => [name, sum / Math.max(count, 1)]));
  row.same_word = sums.same_word / Math.max(repeated, 1);
  row.breadth = row.entropy / Math.max(Math.log2(length), 1e-9);
  return row;
}

function named(layer, head, row) {
  const largest = KINDS.reduce((best, name) => (row[name] > row[best] ? name : best));
  row.special = row.first + row.separator;
  const kind = [largest, "special"].find((name) => row[name] > MIN_SHARE) ?? (row.breadth >= BROAD_ENTROPY ? "broad" : "mixed");
  return { layer, head, kind, ...row };
}
