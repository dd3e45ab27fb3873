// Requests to the server: keys, retries while it is busy, and error messages.

import { fromBase64 } from "../inside/numbers.js";

const STORAGE_KEY = "bertkit-key";
const MAX_ATTEMPTS = 5; // while the server is busy
const MAX_WAIT = 30; // seconds between two attempts

/** A failed request: what happened, and what to do about it. */
export class RequestFailure extends Error {
  constructor(status, what, remedy) {
    super(`${what} ${remedy}`);
    Object.assign(this, { status, what, remedy });
  }
}

const MESSAGES = { // [what, remedy] by status
  401: ["The server asks for a key.", "Whoever runs it can give you one."],
  404: ["Nothing here answers that.", "Choose another tool or model."],
  408: ["The request came in too slowly.", "Try again."],
  413: ["That is too much at once.", "Shorten the text, or split it."],
  422: ["The server cannot work with this.", "Change it and try again."],
  429: ["The server is still busy.", "Wait a little, then try again."],
  504: ["No answer came in time.", "Shorten the text, or try again when the server has less to do."],
};
const WRONG_KEY = ["The server does not take this key.", "Look for a typing error, or ask whoever runs it."];
const SERVER_FAILED = ["The server failed.", "Try again; its log says more."];
const UNREACHABLE = [
  "The server cannot be reached.",
  "Look whether it still runs and whether you are online, then try again; what you typed is kept.",
];

/** The server's reply: {content, note}, where the note is about texts that were too long; with `text` not parsed. */
export async function ask(path, body, { signal, notify, text = false } = {}) {
  for (let attempt = 1; ; attempt++) {
    const reply = await send(path, body, signal);
    if (reply.ok) return { content: await read(reply, signal, text), note: reply.headers.get("bertkit-length-note") };
    if (reply.status !== 429 || attempt === MAX_ATTEMPTS) throw await failure(reply);
    const seconds = Math.min(MAX_WAIT, Math.max(1, Number(reply.headers.get("retry-after")) || 1));
    notify?.(`The server is busy; asking again in ${seconds} s.`);
    await pause(seconds, signal);
  }
}

/** Whether the same request may be answered at another time. */
export function mayRecover({ status }) {
  return ![404, 413, 422].includes(status);
}

/** Send this key with every request until the tab is closed. */
export function useKey(key) {
  sessionStorage.setItem(STORAGE_KEY, key);
}

/** A base64 array as float32. */
export function floats(text) {
  return new Float32Array(fromBase64(text).buffer);
}

function options(body, signal) {
  const key = sessionStorage.getItem(STORAGE_KEY);
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const get = { headers, signal, credentials: key ? "omit" : "same-origin" }; // "omit": no password dialog over the page
  return body === undefined ? get : { ...get, method: "POST", body: JSON.stringify(body) };
}

async function send(path, body, signal) {
  try {
    return await fetch(path, options(body, signal));
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestFailure(0, ...UNREACHABLE);
  }
}

async function read(reply, signal, text) {
  try {
    return await (text ? reply.text() : reply.json());
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestFailure(0, ...UNREACHABLE); // the connection was lost during the reply
  }
}

async function failure(reply) {
  const wrongKey = reply.status === 401 && sessionStorage.getItem(STORAGE_KEY);
  const [what, remedy] = wrongKey ? WRONG_KEY : (MESSAGES[reply.status] ?? SERVER_FAILED);
  const { error } = await reply.json().catch(() => ({})); // the reply of a proxy may not be JSON
  const sentence = typeof error === "string" ? error : error?.message;
  const reason = sentence && reply.status !== 401 ? `${sentence[0].toUpperCase()}${sentence.slice(1).replace(/\.$/, "")}.` : "";
  const told = reason.includes(";"); // the server's sentences name the remedy after a semicolon
  return new RequestFailure(reply.status, what, [reason, told ? "" : remedy].filter(Boolean).join(" "));
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
