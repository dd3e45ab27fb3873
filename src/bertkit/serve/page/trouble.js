// The error box: what happened and what to do; with a form for the key where the server needs one.

import { element } from "../inside/drawing.js";
import { RequestFailure, mayRecover, useKey } from "./ask.js";

/** The box; `retry` sends the same request again. */
export function errorBox(error, retry) {
  const known = error instanceof RequestFailure;
  if (!known) console.error(error); // a bug of this page: the console shows where
  const what = known ? error.what : "The page failed.";
  const remedy = known ? error.remedy : "Reload it; if that does not help, try another text.";
  const actions = known && error.status === 401 ? [keyForm(retry)] : known && !mayRecover(error) ? [] : [retryButton(retry)];
  return element("div", { class: "trouble", role: "alert" }, element("strong", {}, what), " ", remedy, ...actions);
}

function retryButton(retry) {
  return element("div", { class: "actions" }, element("button", { type: "button", onclick: retry }, "Try again"));
}

function keyForm(retry) {
  const input = element("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", required: true });
  const submit = (event) => {
    event.preventDefault();
    useKey(input.value.trim());
    retry();
  };
  const label = element("label", { for: "key" }, "Key, kept until this tab is closed");
  return element("form", { class: "key", onsubmit: submit }, label, input, element("button", { type: "submit" }, "Use it"));
}
