// The state of the page in its address, after the #: it is never sent to a server.

const MOST = 30_000; // characters; longer texts are left out of the link

/** {tool, model, and a value for each field}; whatever stands there is only ever shown as text. */
export function readLink() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Put it there; `visited` makes a step of the browser's history. */
export function writeLink(tool, state, visited = false) {
  const whole = `#${new URLSearchParams({ tool, ...state })}`;
  const link = whole.length > MOST ? `#${new URLSearchParams({ tool })}` : whole;
  if (link === location.hash) return;
  try {
    if (visited) history.pushState(null, "", link);
    else history.replaceState(null, "", link);
  } catch {
    // the browser thinks that it changed too often: the next change will be written
  }
}
