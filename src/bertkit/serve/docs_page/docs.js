// The routes of openapi.json, each with its example request and a button that sends it.

const MAX_SHOWN = 20_000; // characters of a reply

function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function resolve(schema, document) {
  const name = schema?.$ref?.split("/").pop();
  return name ? document.components.schemas[name] : schema;
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
    return element("tr", {},
      element("td", {}, element("code", { textContent: name })),
      element("td", { textContent: kind(field) }),
      element("td", { textContent: fallback }),
      element("td", { textContent: field.description ?? "" }));
  });
  return rows.length ? element("table", {}, ...rows) : "";
}

async function send(method, path, box, output) {
  output.textContent = "…";
  try {
    const body = box ? { body: box.value, headers: { "content-type": "application/json" } } : {};
    const reply = await fetch(path, { method, ...body });
    const text = await reply.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 1); } catch { /* not JSON: shown as it is */ }
    output.textContent = `${reply.status} ${reply.statusText}\n${shown.slice(0, MAX_SHOWN)}`;
  } catch (error) {
    output.textContent = `No reply: ${error.message}`;
  }
}

function route(path, method, operation, document, models) {
  const schema = resolve(operation.requestBody?.content?.["application/json"]?.schema, document);
  const filled = path.replace("{name}", encodeURIComponent(models[0] ?? "")).replace("{task}", "feature-extraction");
  const box = schema && element("textarea", {
    value: JSON.stringify(schema.example ?? {}, null, 2), spellcheck: false, ariaLabel: `request to ${path}`,
  });
  const output = element("pre", { ariaLive: "polite" });
  const button = element("button", { type: "button", textContent: "Send" });
  button.addEventListener("click", () => send(method.toUpperCase(), filled, box, output));
  return element("details", {},
    element("summary", {}, element("code", { textContent: `${method.toUpperCase()} ${path}` }), ` ${operation.summary ?? ""}`),
    fields(schema), ...(box ? [box] : []), button, output);
}

async function start() {
  const main = document.getElementById("routes");
  try {
    const [description, models] = await Promise.all(
      ["/openapi.json", "/v1/models"].map(async (path) => (await fetch(path)).json()));
    const names = models.data.map((model) => model.id);
    const routes = Object.entries(description.paths).flatMap(([path, operations]) =>
      Object.entries(operations).map(([method, operation]) => route(path, method, operation, description, names)));
    main.replaceChildren(element("p", { textContent: `Models: ${names.join(", ")}` }), ...routes);
  } catch (error) {
    main.replaceChildren(element("p", { textContent: `The server did not list its routes: ${error.message}` }));
  }
}

start();
