// Questions to the server: keys, patience while it is busy, and what went wrong in words.

import { fromBase64 } from "../inside/numbers.js";

const KEY = "bertkit-key";
const TRIES = 5; // while the server is busy
const LONGEST_WAIT = 30; // seconds

/** What went wrong, and what to do about it. */
export class Trouble extends Error {
  constructor(status, what, remedy) {
    super(`${what} ${remedy}`);
    Object.assign(this, { status, what, remedy });
  }
}

const WORDS = {
  401: ["The server asks for a key.", "Whoever runs it can give you one."],
  404: ["Nothing here answers that.", "Choose another tool or model."],
  408: ["The request came in too slowly.", "Try again."],
  413: ["That is too much at once.", "Shorten the text, or split it."],
  422: ["The server cannot work with this.", "Change it and try again."],
  429: ["The server is still busy.", "Wait a little, then try again."],
  504: ["No answer came in time.", "Shorten the text, or try again when the server has less to do."],
};
const WRONG_KEY = ["The server does not take this key.", "Look for a typing error, or ask whoever runs it."];
const FAILED = ["The server failed.", "Try again; its log says more."];
const UNREACHED = [
  "The server cannot be reached.",
  "Look whether it still runs and whether you are online, then try again; what you typed is kept.",
];

/** What the server says to a question: {content, note}, where the note tells of texts that were too long. */
export async function ask(path, body, { signal, tell } = {}) {
  for (let tries = 1; ; tries++) {
    const reply = await send(path, body, signal);
    if (reply.ok) return { content: await read(reply, signal), note: reply.headers.get("bertkit-length-note") };
    if (reply.status !== 429 || tries === TRIES) throw await trouble(reply);
    const seconds = Math.min(LONGEST_WAIT, Math.max(1, Number(reply.headers.get("retry-after")) || 1));
    tell?.(`The server is busy; asking again in ${seconds} s.`);
    await pause(seconds, signal);
  }
}

/** From now on, and until this tab is closed, every question carries the key. */
export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** The numbers of an array that came in base64. */
export function floats(text) {
  return new Float32Array(fromBase64(text).buffer);
}

function options(body, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const told = { headers, signal, credentials: key ? "omit" : "same-origin" }; // "omit": no password dialog over the page
  return body === undefined ? told : { ...told, method: "POST", body: JSON.stringify(body) };
}

async function send(path, body, signal) {
  try {
    return await fetch(path, options(body, signal));
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Trouble(0, ...UNREACHED);
  }
}

async function read(reply, signal) {
  try {
    return await reply.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Trouble(0, ...UNREACHED); // it went away in the middle of its answer
  }
}

async function trouble(reply) {
  const wrongKey = reply.status === 401 && sessionStorage.getItem(KEY);
  const [what, remedy] = wrongKey ? WRONG_KEY : (WORDS[reply.status] ?? FAILED);
  const { error } = await reply.json().catch(() => ({})); // a proxy's reply may be no JSON
  const sentence = typeof error === "string" ? error : error?.message;
  const told = sentence && reply.status !== 401 ? `${sentence[0].toUpperCase()}${sentence.slice(1).replace(/\.$/, "")}.` : "";
  return new Trouble(reply.status, what, [told, remedy].filter(Boolean).join(" "));
}

function pause(seconds, signal) {
  return new Promise((done, stop) => {
    const timer = setTimeout(done, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      stop(signal.reason);
    });
  });
}
