// The page: asks what the models can do, shows a tab for each tool that they allow, keeps the link in step.

import { element } from "../inside/drawing.js";
import { ask } from "./ask.js";
import { startColors } from "./colors.js";
import { readLink, writeLink } from "./link.js";
import { Panel } from "./panel.js";
import { TOOLS } from "./tools.js";
import { troubleBox } from "./trouble.js";

const SETTLED = 300; // milliseconds without a change before the link is rewritten: browsers limit how often it may be
const WIDE = matchMedia("(min-width: 860px)");
const place = (id) => document.getElementById(id);

class Page {
  constructor(models) {
    this.able = new Map(TOOLS.map((tool) => [tool, able(tool, models)]));
    this.tools = TOOLS.filter((tool) => this.able.get(tool).length);
    this.panels = new Map();
    this.notice = element("p", { class: "note", role: "status", hidden: true });
    this.tabs = new Map(this.tools.map((tool) => [tool, this.tab(tool)]));
    this.tablist = place("tools");
    this.tablist.replaceChildren(...this.tabs.values());
    this.tablist.onkeydown = (event) => this.move(event);
    this.turn();
    WIDE.addEventListener("change", () => this.turn());
    place("models").replaceChildren(...described(models));
    this.explain(TOOLS.filter((tool) => !this.able.get(tool).length));
    globalThis.onhashchange = () => this.follow();
    this.follow();
  }

  tab(tool) {
    const names = { id: `tab-${tool.name}`, "data-tool": tool.name, "aria-controls": `panel-${tool.name}` };
    return element("button", { type: "button", role: "tab", ...names, onclick: () => this.choose(tool) }, tool.title);
  }

  turn() { this.tablist.setAttribute("aria-orientation", WIDE.matches ? "vertical" : "horizontal"); }

  move(event) {
    const at = this.tools.indexOf(this.tool);
    const last = this.tools.length - 1;
    const ways = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
    if (!(event.key in ways)) return;
    event.preventDefault();
    this.choose(this.tools[(ways[event.key] + this.tools.length) % this.tools.length]);
    this.tabs.get(this.tool).focus();
  }

  panel(tool) {
    if (!this.panels.has(tool)) {
      const made = new Panel(tool, this.able.get(tool), () => this.changed());
      const names = { id: `panel-${tool.name}`, role: "tabpanel", "aria-labelledby": `tab-${tool.name}` };
      for (const [name, value] of Object.entries(names)) made.element.setAttribute(name, value);
      this.panels.set(tool, made);
    }
    return this.panels.get(tool);
  }

  /** Open a tool as its tab does: as it was left, or with its first example. */
  choose(tool) {
    if (tool === this.tool) return;
    this.notice.hidden = true;
    writeLink(this.tool.name, this.panel(this.tool).state); // what was typed last, for the way back
    const fresh = !this.panels.has(tool);
    this.show(tool);
    if (fresh) this.panel(tool).restore({});
    writeLink(tool.name, this.panel(tool).state, true);
  }

  /** Open what the link names. */
  follow() {
    const { tool: name, ...state } = readLink();
    const named = TOOLS.find((tool) => tool.name === name);
    const lacking = named && !this.able.get(named).length;
    this.notice.hidden = !lacking;
    this.notice.textContent = lacking ? `${named.title} is not among the tools here. ${named.needs}` : "";
    const tool = named && !lacking ? named : this.tools[0];
    this.show(tool);
    this.panel(tool).restore(lacking ? {} : state);
  }

  show(tool) {
    if (this.tool && this.tool !== tool) this.panel(this.tool).stop();
    this.tool = tool;
    for (const [each, tab] of this.tabs) {
      tab.setAttribute("aria-selected", `${each === tool}`);
      tab.tabIndex = each === tool ? 0 : -1;
    }
    place("tool").replaceChildren(this.notice, this.panel(tool).element);
    document.title = `${tool.title} · bertkit`;
  }

  changed() {
    clearTimeout(this.settling);
    const { tool } = this;
    this.settling = setTimeout(() => tool === this.tool && writeLink(tool.name, this.panel(tool).state), SETTLED);
  }

  /** The tools that no model here can do, and what they need. */
  explain(lacking) {
    const rows = lacking.flatMap((tool) => [element("dt", {}, tool.title), element("dd", {}, tool.needs)]);
    place("others").hidden = !rows.length;
    place("others").replaceChildren(element("h2", {}, "With other models"), element("dl", {}, ...rows));
  }
}

/** The models that can do it, those that suit it best first. */
function able(tool, models) {
  const suits = (model) => Number(tool.suits?.(model) ?? false);
  return models.filter((model) => model.abilities.includes(tool.ability)).sort((one, other) => suits(other) - suits(one));
}

function described(models) {
  const shape = ({ id, family, layers, width, max_length: most }) =>
    element("span", { class: "model-name", title: `${family}, ${layers} layers of ${width}, up to ${most} tokens` }, id);
  return models.map(shape);
}

async function start() {
  try {
    const { content } = await ask("v1/models");
    new Page(content.data);
  } catch (error) {
    place("tool").replaceChildren(troubleBox(error, start));
  }
}

place("skip").onclick = (event) => {
  event.preventDefault(); // the link carries the state, not a place
  place("tool").focus();
};
startColors(place("theme"));
start();
