// Input fields and examples.

import { element } from "../inside/drawing.js";

let fieldCount = 0;

/** The fields of tools that take a text or a pair of texts. */
export function textAndPair(rows, label) {
  return [{ name: "text", label: "Text", rows }, { name: "pair", label, rows: rows / 2, optional: true }];
}

/**
 * A labeled field: {name, label, rows} is a text area, {kind: "line"} a single line, {kind: "choice", options} a select.
 * With `lines` each line is a text of its own; `written(text, model)` is the text that the model reads.
 * `fit(model)` updates a select whose options depend on the model; `count` is where the number of tokens is shown.
 */
export function field(definition, model, onInput) {
  const { name, label, kind = "area", rows = 3, placeholder = "", optional = false } = definition;
  const id = `field-${++fieldCount}`;
  const count = kind === "choice" ? null : element("span", { class: "count", id: `${id}-count` });
  const common = { id, name, dir: count && "auto", "aria-describedby": count?.id ?? null, oninput: onInput };
  const textual = { ...common, placeholder, spellcheck: "false", autocomplete: "off" };
  const input =
    kind === "choice" ? element("select", common)
    : kind === "line" ? element("input", { ...textual, type: "text" })
    : element("textarea", { ...textual, rows });
  const suffix = optional && kind !== "choice" ? [element("span", { class: "optional" }, " (optional)")] : [];
  const caption = element("div", { class: "caption" }, element("label", { for: id }, label, ...suffix), count ?? "");
  const control = {
    name,
    input,
    count,
    asLines: definition.lines ?? false,
    written: (newModel) => definition.written?.(control.value, newModel) ?? control.value,
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
  const button = (example) => element("button", { type: "button", class: "example", onclick: () => use(example) }, example.title);
  group.replaceChildren(element("span", {}, "Try"), ...tool.examples.map(button));
  return group;
}
