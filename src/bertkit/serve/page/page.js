// The page: asks for the models' abilities, shows a tab for each tool that they allow, keeps the link up to date.

import { element } from "../inside/drawing.js";
import { modelButtons } from "./about.js";
import { ask } from "./ask.js";
import { startColors } from "./colors.js";
import { HowPanel } from "./how.js";
import { readLink, writeLink } from "./link.js";
import { Panel } from "./panel.js";
import { TOOLS } from "./tools.js";
import { errorBox } from "./trouble.js";

const LINK_DELAY = 300; // milliseconds without a change before the link is rewritten: browsers limit how often it may be
const WIDE = matchMedia("(min-width: 860px)");
const byId = (id) => document.getElementById(id);

class Page {
  constructor(models) {
    this.able = new Map(TOOLS.map((tool) => [tool, able(tool, models)]));
    const isAble = (tool) => this.able.get(tool).length > 0;
    this.tools = [...TOOLS.filter(isAble), ...TOOLS.filter((tool) => !isAble(tool))];
    this.panels = new Map();
    this.tabs = new Map(this.tools.map((tool) => [tool, this.tab(tool)]));
    this.tablist = byId("tools");
    this.tablist.replaceChildren(...this.tabs.values());
    this.tablist.onkeydown = (event) => this.move(event);
    this.orient();
    WIDE.addEventListener("change", () => this.orient());
    byId("models").replaceChildren(...modelButtons(models));
    globalThis.onhashchange = () => this.follow();
    this.follow();
  }

  tab(tool) {
    const isAble = this.able.get(tool).length > 0;
    const names = { id: `tab-${tool.name}`, "data-tool": tool.name, class: isAble ? null : "unavailable" };
    const needs = isAble ? [] : [element("small", {}, `needs ${tool.needs} – how?`)];
    return element("button", { type: "button", role: "tab", ...names, onclick: () => this.choose(tool) }, tool.title, ...needs);
  }

  orient() { this.tablist.setAttribute("aria-orientation", WIDE.matches ? "vertical" : "horizontal"); }

  move(event) {
    const index = this.tools.indexOf(this.tool);
    const last = this.tools.length - 1;
    const targets = { ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1, Home: 0, End: last };
    if (!(event.key in targets)) return;
    event.preventDefault();
    this.choose(this.tools[(targets[event.key] + this.tools.length) % this.tools.length]);
    this.tabs.get(this.tool).focus();
  }

  panel(tool) {
    if (!this.panels.has(tool)) {
      const models = this.able.get(tool);
      const panel = models.length ? new Panel(tool, models, () => this.changed()) : new HowPanel(tool);
      const attributes = { id: `panel-${tool.name}`, role: "tabpanel", "aria-labelledby": `tab-${tool.name}` };
      for (const [name, value] of Object.entries(attributes)) panel.element.setAttribute(name, value);
      this.panels.set(tool, panel);
    }
    return this.panels.get(tool);
  }

  /** Open a tool in its last state, or with its first example. */
  choose(tool) {
    if (tool === this.tool) return;
    writeLink(this.tool.name, this.panel(this.tool).state); // the last input, for the back button
    const isNew = !this.panels.has(tool);
    this.show(tool);
    if (isNew) this.panel(tool).restore({});
    writeLink(tool.name, this.panel(tool).state, true);
  }

  /** Open the tool of the link, with its values. */
  follow() {
    const { tool: name, ...state } = readLink();
    const tool = TOOLS.find((each) => each.name === name) ?? this.tools[0];
    this.show(tool);
    this.panel(tool).restore(state);
  }

  show(tool) {
    if (this.tool && this.tool !== tool) this.panel(this.tool).stop();
    this.tool = tool;
    for (const [other, tab] of this.tabs) {
      tab.setAttribute("aria-selected", `${other === tool}`);
      tab.tabIndex = other === tool ? 0 : -1;
      tab.removeAttribute("aria-controls");
    }
    byId("tool").replaceChildren(this.panel(tool).element);
    const tab = this.tabs.get(tool);
    tab.setAttribute("aria-controls", `panel-${tool.name}`); // only the open panel is in the document
    this.tablist.scrollLeft = tab.offsetLeft - (this.tablist.clientWidth - tab.offsetWidth) / 2; // on narrow screens
    document.title = `${tool.title} · bertkit`;
  }

  changed() {
    clearTimeout(this.linkTimer);
    const { tool } = this;
    this.linkTimer = setTimeout(() => tool === this.tool && writeLink(tool.name, this.panel(tool).state), LINK_DELAY);
  }
}

/** The models with the tool's ability, those that suit it best first. */
function able(tool, models) {
  const suits = (model) => Number(tool.suits?.(model) ?? false);
  return models.filter((model) => model.abilities.includes(tool.ability)).sort((one, other) => suits(other) - suits(one));
}

async function start() {
  try {
    const { content } = await ask("v1/models");
    new Page(content.data);
  } catch (error) {
    byId("tool").replaceChildren(errorBox(error, start));
  }
}

byId("skip").onclick = (event) => {
  event.preventDefault(); // the hash holds the state of the page
  byId("tool").focus();
};
startColors(byId("theme"));
start();
