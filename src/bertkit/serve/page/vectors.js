// Sentences as vectors of length 1, asked for once each.

import { floats } from "./ask.js";

/** What tools of sentences ask of a model: any that embeds, and first those made for sentences, whose folders say so. */
export const FOR_SENTENCES = { ability: "embed", suits: ({ normalize }) => normalize };

const AT_ONCE = 128; // texts in one request
const KEPT = 5_000; // vectors; more are forgotten before the next question
const known = new Map(); // model and text -> vector

/** A vector for each text; those that were asked for before are not asked for again. */
export async function vectors(texts, model, send, tell) {
  if (known.size > KEPT) known.clear();
  const key = (text) => `${model.id}\n${text}`;
  const missing = [...new Set(texts)].filter((text) => !known.has(key(text)));
  const pooling = model.poolings.includes(model.pooling) ? {} : { pooling: model.poolings[0] }; // one vector for each text, whatever the folder says
  for (let at = 0; at < missing.length; at += AT_ONCE) {
    if (missing.length > AT_ONCE) tell(`${at} of ${missing.length} texts read …`);
    const some = missing.slice(at, at + AT_ONCE);
    const replies = await send("embed", { inputs: some, normalize: true, encoding_format: "base64", ...pooling });
    some.forEach((text, n) => known.set(key(text), floats(replies[n])));
  }
  return texts.map((text) => known.get(key(text)));
}

/** The cosine of two vectors of length 1. */
export function cosine(one, other) {
  let sum = 0;
  for (let n = 0; n < one.length; n++) sum += one[n] * other[n];
  return sum;
}
