// Embeddings of sentences, normalized and cached.

import { floats } from "./ask.js";

/** For tools of sentences: first the models that normalize, which are made for sentences; bundled ones after others. */
export const FOR_SENTENCES = { ability: "embed", suits: ({ normalize, bundled }) => 2 * normalize - bundled };

const TEXTS_PER_REQUEST = 128;
const MAX_CACHED = 5_000; // vectors; the cache is cleared when it has more
const cache = new Map(); // model and text -> vector

/** A vector for each text, from the cache where it was requested before. */
export async function vectors(texts, model, send, notify) {
  if (cache.size > MAX_CACHED) cache.clear();
  const key = (text) => `${model.id}\n${text}`;
  const missing = [...new Set(texts)].filter((text) => !cache.has(key(text)));
  const pooling = model.poolings.includes(model.pooling) ? {} : { pooling: model.poolings[0] }; // one vector for each text, even where the folder has no pooling
  for (let start = 0; start < missing.length; start += TEXTS_PER_REQUEST) {
    if (missing.length > TEXTS_PER_REQUEST) notify(`${start} of ${missing.length} texts read …`);
    const batch = missing.slice(start, start + TEXTS_PER_REQUEST);
    const replies = await send("embed", { inputs: batch, normalize: true, encoding_format: "base64", ...pooling });
    batch.forEach((text, n) => cache.set(key(text), floats(replies[n])));
  }
  return texts.map((text) => cache.get(key(text)));
}

/** The cosine of two vectors of length 1. */
export function cosine(one, other) {
  let sum = 0;
  for (let n = 0; n < one.length; n++) sum += one[n] * other[n];
  return sum;
}
