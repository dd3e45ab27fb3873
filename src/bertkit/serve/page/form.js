// Fields, examples and the request behind an answer.

import { element } from "../inside/drawing.js";
import { short } from "./parts.js";

let fields = 0;

/** The fields of tools that take a text, or two read together. */
export function textAndPair(rows, label) {
  return [{ name: "text", label: "Text", rows }, { name: "pair", label, rows: rows / 2, optional: true }];
}

/**
 * A labeled field: {name, label, rows} is an area of text, {kind: "line"} one line, {kind: "choice", options} a list.
 * `fit(model)` renews a list whose options depend on the model.
 */
export function field(described, model, typed) {
  const { name, label, kind = "area", rows = 3, placeholder = "", optional = false } = described;
  const id = `field-${++fields}`;
  const common = { id, name, dir: kind === "choice" ? null : "auto", oninput: typed };
  const written = { ...common, placeholder, spellcheck: "false", autocomplete: "off" };
  const input =
    kind === "choice" ? element("select", common)
    : kind === "line" ? element("input", { ...written, type: "text" })
    : element("textarea", { ...written, rows });
  const leave = optional && kind !== "choice" ? [element("span", { class: "optional" }, " (optional)")] : [];
  const caption = element("label", { for: id }, label, ...leave);
  const made = {
    name,
    input,
    first: "",
    element: element("div", { class: `field ${kind}` }, caption, input),
    get value() { return input.value.toWellFormed?.() ?? input.value; }, // half a character is no JSON
    set value(value) { input.value = value; if (kind === "choice" && input.selectedIndex < 0) input.value = made.first; },
    fit(fitting) { if (kind === "choice") refill(made, described.options(fitting)); },
  };
  made.fit(model);
  return made;
}

function refill(made, options) {
  const kept = made.input.value;
  made.first = options[0][0];
  made.input.replaceChildren(...options.map(([value, shown]) => element("option", { value }, shown)));
  made.value = kept || made.first;
}

/** A row of buttons that put an example into the fields. */
export function examples(tool, use) {
  const made = element("div", { class: "examples", role: "group", "aria-label": "examples" });
  const button = (example) => {
    const shown = short(example.called ?? Object.values(example)[0], 40);
    return element("button", { type: "button", class: "example", onclick: () => use(example) }, shown);
  };
  made.replaceChildren(element("span", {}, "Try"), ...tool.examples.map(button));
  return made;
}

/** The last question as a command, for those who want to ask it from elsewhere; `show` renews it. */
export function request() {
  const shown = element("pre", { tabindex: "0" }, "Nothing was asked yet.");
  const made = element("details", { class: "request" }, element("summary", {}, "The same as a command"), shown);
  return { element: made, show: (path, body) => { shown.textContent = command(path, body); } };
}

function command(path, body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s ${new URL(path, location.href).href} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}
