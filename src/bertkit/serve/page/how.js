// The panel of a tool that no model here can do: what it needs, and how to get it.

import { element } from "../inside/drawing.js";
import { copyButton } from "./copy.js";

const OWN = "bertkit serve MY-MODEL"; // where there is no command that makes such a model

/** As a panel of a tool, without a state. */
export class HowPanel {
  constructor(tool) {
    const folder = tool.command?.split(" --out ")[1];
    const serve = tool.command === "" ? "bertkit serve" : folder ? `bertkit serve ${folder}` : OWN;
    const commands = [tool.command, serve].filter(Boolean).join("\n");
    this.state = {};
    this.element = element("section", { class: "how", "data-turn": "1" },
      element("h2", {}, tool.title),
      element("p", { class: "lead" }, tool.lead),
      element("p", {}, `No model of this server can do this: it needs ${tool.needs}. ${tool.how ?? "Serve one:"}`),
      element("pre", { tabindex: "0" }, commands),
      element("div", { class: "actions" }, copyButton("Copy", () => commands)));
  }

  restore() {} // there is nothing to restore or to stop

  stop() {}
}
