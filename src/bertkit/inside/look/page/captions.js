// What a head does, in words: its caption, the heads worth seeing, and what the page begins with.

const MAX_START_ROW = 12; // the first chosen token is among these, so that it is visible
const PIECE_MARK = /^(##|[Ġ▁])+/u; // WordPiece, byte-level and SentencePiece vocabularies
const PUNCTUATION = /^[\p{P}\p{S}]+$/u;

/** kind of the catalogue -> [caption, short name of what is attended to, as in inside/look/heads.py]; the order is that of the list of heads. */
const PATTERNS = {
  next: ["each word looks at the next one", "next word"],
  previous: ["each word looks at the one before it", "previous word"],
  same_word: ["each word looks at the same word elsewhere in the text", "same word"],
  itself: ["each word looks at itself", "itself"],
  mixed: ["each word looks at several kinds of tokens, at none of them with half of its attention", "mixed"],
  separator: ["each word looks at the separator", "separator"],
  first: ["each word looks at the first token", "first token"],
  special: ["each word looks at the first token and the separators", "special tokens"],
  broad: ["each word looks at almost everything", "everything"],
};
const TELLING = ["next", "previous", "same_word"]; // kinds that a reader sees at once

/** A token in quotation marks, for sentences. */
export const quoted = (token) => `“${token}”`;

/** A token and its position in the text, which tells equal tokens apart. */
export const placed = (token, position) => `${quoted(token)} (position ${position})`;

/** Whether each token is special, such as [CLS], or punctuation. */
export function minorTokens({ tokens, special = [] }) {
  return tokens.map((token, n) => Boolean(special[n]) || PUNCTUATION.test(token.replace(PIECE_MARK, "")));
}

/** What a head does in this text: its pattern, and the share of the attention that follows it. */
export function headCaption(row, tokens) {
  const share = row[row.kind];
  const measure = share === undefined ? `about ${Math.max(1, Math.round(spread(row)))} of ${tokens} tokens` : `${Math.round(100 * share)} %`;
  return `Layer ${row.layer}, head ${row.head}: ${PATTERNS[row.kind][0]} (${measure})`;
}

/** The clearest head of each kind that the text has, as {row, name}. */
export function worthSeeing(catalogue) {
  return Object.entries(PATTERNS).flatMap(([kind, [, name]]) => {
    const rows = catalogue.filter((row) => row.kind === kind);
    return rows.length ? [{ row: rows.reduce((best, row) => (clearness(row) > clearness(best) ? row : best)), name }] : [];
  });
}

/** The short name of what heads of a kind look at. */
export const kindName = (kind) => PATTERNS[kind][1];

/** Over how many tokens a head's attention is spread: uniform attention over as many has this entropy. */
export const spread = ({ entropy }) => 2 ** entropy;

/** A head as it is called everywhere; both numbers are counted from 1. */
export const headName = ({ layer, head }) => `layer ${layer}, head ${head}`;

const clearness = (row) => row[row.kind] ?? (row.kind === "broad" ? row.breadth : -row.entropy);

/** The head to begin with: a clear pattern between words, else the narrowest attention to words; null without heads. */
export function tellingHead(catalogue) {
  const best = (kinds) => worthSeeing(catalogue.filter((row) => kinds.includes(row.kind))).map(({ row }) => row);
  const telling = best(TELLING).sort((one, other) => other[other.kind] - one[one.kind]);
  return [...telling, ...best(["itself", "mixed"]), ...best(Object.keys(PATTERNS))][0] ?? null;
}

/** The start of a word with the largest weight on another token, among the first ones; else the first word. */
export function tellingToken(layer, head, minor, tokens) {
  const words = [...minor.keys()].filter((token) => !minor[token]);
  let [found, largest] = [words[0] ?? 0, 0];
  for (const from of words.filter((token) => token < MAX_START_ROW && !tokens[token].startsWith("##"))) {
    const weights = layer.row(head, from);
    for (const to of words) if (to !== from && weights[to] > largest) [found, largest] = [from, weights[to]];
  }
  return found;
}
