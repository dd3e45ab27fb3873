// The state of the page in its address, after the #: it is never sent to a server.

const MAX_LENGTH = 30_000; // characters; longer texts are left out of the link

/** {tool, model, and a value for each field}; untrusted, so that it is only ever shown as text. */
export function readLink() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** The address of this page in this state. */
export function linkTo(tool, state) {
  return new URL(hash(tool, state), location.href).href;
}

/** Write the state; with `push` as a new entry of the browser's history. */
export function writeLink(tool, state, push = false) {
  const link = hash(tool, state);
  if (link === location.hash) return;
  try {
    if (push) history.pushState(null, "", link);
    else history.replaceState(null, "", link);
  } catch {
    // browsers limit how often it may change: the next change will be written
  }
}

function hash(tool, state) {
  const whole = `#${new URLSearchParams({ tool, ...state })}`;
  return whole.length > MAX_LENGTH ? `#${new URLSearchParams({ tool })}` : whole;
}
