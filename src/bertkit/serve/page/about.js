// The names of the models, each a button that opens what is known about it.

import { element } from "../inside/drawing.js";

const SHOWN_LABELS = 40;

/** A button for each model. */
export function modelButtons(models) {
  return models.map((model) => {
    const open = () => openDialog(model);
    return element("button", { type: "button", class: "model-name", title: `About ${model.id}`, "aria-haspopup": "dialog", onclick: open }, model.id);
  });
}

function openDialog(model) {
  const close = element("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close");
  const title = element("h2", { id: "about-title" }, "About ", element("bdi", {}, model.id));
  const rows = facts(model).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, element("bdi", {}, value))]);
  const dialog = element("dialog", { class: "about", "aria-labelledby": "about-title" }, title, element("dl", { class: "facts" }, ...rows), close);
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); }; // beside the box
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
}

/** [name, value] of all that is known. */
function facts(model) {
  const { labels, parameters, bytes } = model;
  const more = labels.length > SHOWN_LABELS ? ` and ${labels.length - SHOWN_LABELS} more` : "";
  const known = [
    ["Family", model.family],
    ["Fine-tuned for", model.task],
    ["Labels", labels.slice(0, SHOWN_LABELS).join(", ") + more],
    ["Layers", `${model.layers}, each ${model.width} wide${model.heads ? `, ${model.heads} attention heads` : ""}`],
    ["Parameters", parameters.toLocaleString("en")],
    ["Vocabulary", `${model.vocabulary.toLocaleString("en")} tokens`],
    ["Maximum length", `${model.max_length.toLocaleString("en")} tokens`],
    ["Size in memory", `${(bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB of weights`],
    ["Computes in", model.dtype],
    ["Embeddings", `${model.pooling} pooling${model.normalize ? ", normalized" : ""}`],
    ["Can do", model.abilities.join(", ")],
  ];
  return known.filter(([, value]) => value);
}
