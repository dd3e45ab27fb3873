// What went wrong, as a box that says what to do; a key is asked for only when the server wants one.

import { element } from "../inside/drawing.js";
import { Trouble, useKey } from "./ask.js";

/** The box; `again` asks the same question once more. */
export function troubleBox(error, again) {
  const known = error instanceof Trouble;
  if (!known) console.error(error); // a fault of this page: whoever looks for it needs the place
  const what = known ? error.what : "The page failed.";
  const remedy = known ? error.remedy : "Reload it; if that does not help, try another text.";
  const way = known && error.status === 401 ? keyForm(again) : retry(again);
  return element("div", { class: "trouble", role: "alert" }, element("strong", {}, what), " ", remedy, way);
}

function retry(again) {
  return element("div", { class: "actions" }, element("button", { type: "button", onclick: again }, "Try again"));
}

function keyForm(again) {
  const input = element("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", required: true });
  const submit = (event) => {
    event.preventDefault();
    useKey(input.value.trim());
    again();
  };
  const label = element("label", { for: "key" }, "Key, kept until this tab is closed");
  return element("form", { class: "key", onsubmit: submit }, label, input, element("button", { type: "submit" }, "Use it"));
}
