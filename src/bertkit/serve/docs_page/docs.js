// The routes of openapi.json in groups, each with its fields, an example request and a button that sends it.

import { element } from "../inside/drawing.js";
import { ask } from "../page/ask.js";
import { startColors } from "../page/colors.js";
import { RequestView } from "../page/request.js";
import { errorBox } from "../page/trouble.js";

const MAX_SHOWN = 20_000; // characters of a reply
const GROUPS = { // tag -> title and what the routes are for; other tags come last, under their own name
  heads: ["Predictions", "Labels, tags, answers, masked words: what the heads of the models give."],
  vectors: ["Embeddings", "Vectors of texts, and what is made of them: similarity, ranking."],
  tokens: ["Tokens", "Texts as tokens, and back."],
  inside: ["Looking inside", "Attention, queries and keys, and how much each word adds to a prediction."],
  "hugging face": ["Hugging Face", "The same models for clients of Hugging Face's inference API."],
  status: ["Server", "Whether it runs, what it is, what it measures."],
};
const byId = (id) => document.getElementById(id);

function resolve(schema, description) {
  const name = schema?.$ref?.split("/").pop();
  return name ? description.components.schemas[name] : schema;
}

function kind(schema) {
  if (!schema) return "";
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const parts = schema.anyOf ?? schema.oneOf;
  if (parts) return [...new Set(parts.map(kind))].join(" | ");
  if (schema.type === "array") return `list of ${kind(schema.items) || "anything"}`;
  return schema.type ?? schema.$ref?.split("/").pop() ?? "anything";
}

function fields(schema) {
  const rows = Object.entries(schema?.properties ?? {}).map(([name, field]) => {
    const fallback = schema.required?.includes(name) ? "required" : JSON.stringify(field.default ?? null);
    const cells = [element("code", {}, name), kind(field), fallback, field.description ?? ""];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  });
  if (!rows.length) return [];
  const head = element("tr", {}, ...["field", "type", "default", ""].map((name) => element(name ? "th" : "td", name ? { scope: "col" } : {}, name)));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  return [element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "fields of the request" }, table)];
}

/** One route; its form is made when it is opened. */
function route({ path, method, operation }, description, models) {
  const about = element("span", { class: "about" }, operation.summary ?? "");
  const summary = element("summary", {}, element("span", { class: "method" }, method.toUpperCase()), element("code", {}, path), about);
  const inner = element("div", { class: "inner" });
  const fill = () => inner.childElementCount || inner.append(...form(path, method, operation, description, models));
  return element("details", { class: "route", ontoggle: fill }, summary, inner);
}

function form(path, method, operation, description, models) {
  const schema = resolve(operation.requestBody?.content?.["application/json"]?.schema, description);
  const filled = path.replace("{name}", encodeURIComponent(models[0] ?? "")).replace("{task}", "feature-extraction").slice(1);
  const example = JSON.stringify(schema?.example ?? {}, null, 2);
  const box = method === "get" ? null : element("textarea", { spellcheck: "false", rows: "4", "aria-label": `request to ${path}` }, example);
  const output = element("pre", { tabindex: "0", role: "status", "aria-label": "reply" });
  const trouble = element("div", {});
  const shown = new RequestView();
  const go = element("button", { type: "button", class: "go", onclick: () => send(filled, box, output, trouble, shown) }, "Send");
  return [...fields(schema), ...(box ? [element("div", { class: "field" }, box)] : []), element("div", { class: "actions" }, go), trouble, output, element("div", { class: "more" }, shown.element)];
}

async function send(path, box, output, trouble, shown) {
  trouble.replaceChildren();
  output.textContent = "…";
  try {
    const body = box ? JSON.parse(box.value) : undefined;
    if (box) shown.show(path || ".", body);
    const { content } = await ask(path || ".", body, { text: true });
    output.textContent = written(content).slice(0, MAX_SHOWN) || "200, and nothing else.";
  } catch (error) {
    output.textContent = "";
    if (error instanceof SyntaxError) trouble.replaceChildren(element("p", { class: "note", role: "alert" }, `This is not JSON: ${error.message}`));
    else trouble.replaceChildren(errorBox(error, () => send(path, box, output, trouble, shown)));
  }
}

/** A reply as text: JSON with line breaks, other text as it is. */
function written(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

function group(tag, routes, description, models) {
  const [title, about] = GROUPS[tag] ?? [tag, ""];
  const id = `group-${tag.replaceAll(" ", "-")}`;
  byId("groups").append(element("a", { href: `docs#${id}` }, title));
  return element("section", { id }, element("h3", {}, title), element("p", {}, about), ...routes.map((each) => route(each, description, models)));
}

async function start() {
  try {
    const [description, models] = await Promise.all(["openapi.json", "v1/models"].map(async (path) => (await ask(path)).content));
    const routes = Object.entries(description.paths).flatMap(([path, operations]) =>
      Object.entries(operations).map(([method, operation]) => ({ path, method, operation, tag: operation.tags[0] })));
    const tags = [...new Set([...Object.keys(GROUPS), ...routes.map(({ tag }) => tag)])];
    const names = models.data.map((model) => model.id);
    byId("groups").replaceChildren();
    const sections = tags.map((tag) => [tag, routes.filter((each) => each.tag === tag)]).filter(([, own]) => own.length);
    byId("list").replaceChildren(...sections.map(([tag, own]) => group(tag, own, description, names)));
  } catch (error) {
    byId("list").replaceChildren(errorBox(error, start));
  }
}

startColors(byId("theme"));
start();
