// The state of the page in its address, after the #: it is never sent to a server.

const MAX_LENGTH = 30_000; // characters; longer texts are left out of the link

/** {tool, model, and a value for each field}; untrusted, so that it is only ever shown as text. */
export function readLink() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Write the state; with `push` as a new entry of the browser's history. */
export function writeLink(tool, state, push = false) {
  const whole = `#${new URLSearchParams({ tool, ...state })}`;
  const link = whole.length > MAX_LENGTH ? `#${new URLSearchParams({ tool })}` : whole;
  if (link === location.hash) return;
  try {
    if (push) history.pushState(null, "", link);
    else history.replaceState(null, "", link);
  } catch {
    // browsers limit how often it may change: the next change will be written
  }
}
