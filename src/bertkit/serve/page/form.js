// Input fields, examples, and the request as a curl command.

import { element } from "../inside/drawing.js";
import { short } from "./parts.js";

let fieldCount = 0;

/** The fields of tools that take a text or a pair of texts. */
export function textAndPair(rows, label) {
  return [{ name: "text", label: "Text", rows }, { name: "pair", label, rows: rows / 2, optional: true }];
}

/**
 * A labeled field: {name, label, rows} is a text area, {kind: "line"} a single line, {kind: "choice", options} a select.
 * `fit(model)` updates a select whose options depend on the model.
 */
export function field(definition, model, onInput) {
  const { name, label, kind = "area", rows = 3, placeholder = "", optional = false } = definition;
  const id = `field-${++fieldCount}`;
  const common = { id, name, dir: kind === "choice" ? null : "auto", oninput: onInput };
  const textual = { ...common, placeholder, spellcheck: "false", autocomplete: "off" };
  const input =
    kind === "choice" ? element("select", common)
    : kind === "line" ? element("input", { ...textual, type: "text" })
    : element("textarea", { ...textual, rows });
  const suffix = optional && kind !== "choice" ? [element("span", { class: "optional" }, " (optional)")] : [];
  const caption = element("label", { for: id }, label, ...suffix);
  const control = {
    name,
    input,
    first: "", // the default value
    element: element("div", { class: `field ${kind}` }, caption, input),
    get value() { return input.value.toWellFormed?.() ?? input.value; }, // a lone surrogate is not valid JSON
    set value(value) { input.value = value; if (kind === "choice" && input.selectedIndex < 0) input.value = control.first; },
    fit(newModel) { if (kind === "choice") refill(control, definition.options(newModel)); },
  };
  control.fit(model);
  return control;
}

function refill(select, options) {
  const previous = select.input.value;
  select.first = options[0][0];
  select.input.replaceChildren(...options.map(([value, shown]) => element("option", { value }, shown)));
  select.value = previous || select.first;
}

/** A row of buttons that put an example into the fields. */
export function examples(tool, use) {
  const group = element("div", { class: "examples", role: "group", "aria-label": "examples" });
  const button = (example) => {
    const shown = short(example.title ?? Object.values(example)[0], 40);
    return element("button", { type: "button", class: "example", onclick: () => use(example) }, shown);
  };
  group.replaceChildren(element("span", {}, "Try"), ...tool.examples.map(button));
  return group;
}

/** The last request as a curl command; `show` updates it. */
export function request() {
  const shown = element("pre", { tabindex: "0" }, "No request was sent yet.");
  const details = element("details", { class: "request" }, element("summary", {}, "The same as a command"), shown);
  return { element: details, show: (path, body) => { shown.textContent = command(path, body); } };
}

function command(path, body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s ${new URL(path, location.href).href} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}
