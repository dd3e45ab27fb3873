// The last request as a program that can be pasted, and its reply.

import { element } from "../inside/drawing.js";
import { copyButton } from "./copy.js";

const MAX_SHOWN = 20_000; // characters of a reply

const FORMS = {
  curl: (url, body) => `curl -s ${url} \\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`,
  Python: (url, body) =>
    `import json, urllib.request\n\nbody = ${python(body)}\n` +
    `request = urllib.request.Request("${url}", json.dumps(body).encode(), {"Content-Type": "application/json"})\n` +
    "print(json.load(urllib.request.urlopen(request)))",
  JavaScript: (url, body) =>
    `const body = ${JSON.stringify(body)};\nconst headers = { "Content-Type": "application/json" };\n` +
    `const reply = await fetch("${url}", { method: "POST", headers, body: JSON.stringify(body) });\nconsole.log(await reply.json());`,
  Reply: (url, body, reply) => shortened(JSON.stringify(reply, null, 1)),
};

/** `show(path, body)` is called with each request, `answered(reply)` with its reply, `clear()` where there is none. */
export class RequestView {
  constructor() {
    this.text = element("pre", { tabindex: "0", "aria-label": "request" });
    this.buttons = Object.keys(FORMS).map((form) => element("button", { type: "button", onclick: () => this.choose(form) }, form));
    const bar = element("div", { class: "actions" }, element("div", { class: "segments" }, ...this.buttons), copyButton("Copy", () => this.text.textContent));
    this.element = element("details", { class: "request", hidden: true }, element("summary", {}, "API request"), bar, this.text);
    this.choose("curl");
  }

  show(path, body) {
    Object.assign(this, { url: new URL(path, document.baseURI.split("#")[0]).href, body, reply: null });
    this.element.hidden = false;
    this.draw();
  }

  answered(reply) {
    this.reply = reply;
    this.draw();
  }

  clear() { this.element.hidden = true; }

  choose(form) {
    this.form = form;
    for (const button of this.buttons) button.setAttribute("aria-pressed", `${button.textContent === form}`);
    this.draw();
  }

  draw() {
    if (this.body) this.text.textContent = FORMS[this.form](this.url, this.body, this.reply);
  }
}

function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`).join(", ")}}`;
  }
  return { null: "None", true: "True", false: "False" }[value === null || typeof value === "boolean" ? `${value}` : ""] ?? JSON.stringify(value);
}

function shortened(text) {
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}\n… and ${(text.length - MAX_SHOWN).toLocaleString("en")} more characters` : text;
}
