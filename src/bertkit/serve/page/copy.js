// A button that copies a text, and says so.

import { element } from "../inside/drawing.js";

const SHOWN = 1_600; // milliseconds that the button says what happened

/** `text` is a function, so that the button copies what is there when it is pressed. */
export function copyButton(label, text) {
  const button = element("button", { type: "button", class: "quiet" }, label);
  const status = element("span", { class: "heard", role: "status" });
  let timer = null;
  button.onclick = async () => {
    const done = await copied(text()).catch(() => false);
    button.textContent = status.textContent = done ? "Copied" : "This browser does not let the page copy";
    clearTimeout(timer);
    timer = setTimeout(() => { button.textContent = label; status.textContent = ""; }, SHOWN);
  };
  return element("span", {}, button, status);
}

async function copied(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return true;
  }
  const area = element("textarea", { class: "heard", readonly: true }, text); // without TLS there is no clipboard API
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
