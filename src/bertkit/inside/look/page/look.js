// Seven views of one text. `mount(element, data)` draws them into any element.

import { Layer } from "./numbers.js";
import { headName, minorTokens, tellingHead, tellingToken, worthSeeing } from "./captions.js";
import { element, fadeEdges, headColor } from "./drawing.js";
import { footer, header, help, offerMore } from "./header.js";
import { HeadView, PAIR_FILTERS } from "./head_view.js";
import { CrossView } from "./cross_view.js";
import { ModelView } from "./model_view.js";
import { NeuronView } from "./neuron_view.js";
import { VectorView } from "./vector_view.js";
import { FillView } from "./fill_view.js";
import { KindsView } from "./kinds_view.js";

/**
 * The views in the order of their tabs. Each is a class with
 *   title       of its tab
 *   controls    the controls that it uses: layer, heads (with `oneHead` one at a time), filter, hide
 *   caption     of views of heads: a sentence about the chosen ones, from the app
 *   needs       the part of the data that it draws, if some pages lack it; these do not show the view
 *   part        the part of the data that has its layers, if they are not `data.layers`
 *   element     the DOM element, and draw(layer), which updates it
 */
const VIEWS = {
  heads: HeadView, source: CrossView, model: ModelView, neurons: NeuronView, vectors: VectorView, fills: FillView, kinds: KindsView,
};

const controlsOf = (view) => VIEWS[view].controls ?? [];

/** Draw the views of `data` (see inside/look/data.py) into `host`; returns the app, whose `set` changes what is shown. */
export function mount(host, data) {
  const app = new App(host, data);
  app.start();
  return app;
}

class App {
  constructor(host, data) {
    Object.assign(this, { host, data, layers: {}, views: {}, updates: 0 });
    this.heads = data.heads || data.source?.heads || 0; // recurrent layers have none, but for what they attend to in a source
    this.minor = minorTokens(data);
    this.firstToken = Math.max(0, this.minor.indexOf(false)); // that is a word
    const heads = new Set(Array.from({ length: this.heads }, (_, head) => head));
    this.names = Object.keys(VIEWS).filter((name) => !VIEWS[name].needs || data[VIEWS[name].needs]);
    this.state = { view: this.names[0], layer: 0, head: 0, heads, token: null, filter: "all", hide: false };
    this.build();
    offerMore(this.host);
    fadeEdges(this.tabs);
    new ResizeObserver(() => this.resized()).observe(this.host);
  }

  /** Begin with the head that was asked for, else with one that has a clear pattern, and one token; without heads, with the first view. */
  async start() {
    const row = this.data.start ?? tellingHead(this.data.catalogue ?? []);
    if (!row) return this.set({});
    const [layer, head] = [row.layer - 1, row.head - 1];
    const token = tellingToken(await this.layer("heads", layer), head, this.minor, this.data.tokens);
    return this.set({ layer, head, heads: new Set([head]), token });
  }

  build() {
    const tabs = this.names.map((name) => this.tab(name));
    this.tabs = element("div", { class: "tabs", role: "tablist", "aria-label": "views" }, ...tabs);
    this.tabs.addEventListener("keydown", (event) => this.moveTab(event));
    this.tabs.addEventListener("scroll", () => fadeEdges(this.tabs), { passive: true });
    this.controls = element("div", { class: "controls" }, this.layerControl(), this.headControl(), this.filterControl(), this.hideControl());
    this.caption = element("p", { class: "head-caption" });
    this.worth = this.worthControl();
    this.status = element("output", { class: "status" });
    this.panel = element("div", { class: "panel", role: "tabpanel" });
    this.panel.addEventListener("keydown", (event) => this.keys(event));
    this.host.classList.add("bertkit-look");
    const bar = element("div", { class: "bar" }, this.tabs, help());
    this.host.replaceChildren(header(this.data), bar, this.controls, this.caption, this.worth, this.status, this.panel, footer(this.data));
  }

  tab(name) {
    return element("button", { type: "button", role: "tab", "data-view": name, onclick: () => this.set({ view: name }) }, VIEWS[name].title);
  }

  layerControl() {
    const options = this.layersOf(this.state.view).map((_, layer) => element("option", { value: layer }, `${layer + 1}`));
    const change = (event) => this.set({ layer: +event.target.value });
    this.layerSelect = element("select", { "aria-label": "layer", onchange: change }, ...options);
    return element("label", { class: "control layer" }, "layer ", this.layerSelect);
  }

  headControl() {
    const all = Array.from({ length: this.heads }, (_, head) => head);
    this.chips = all.map((head) => {
      const chip = element("button", { type: "button", class: "chip", title: "double-click: only this head" }, `${head + 1}`);
      chip.style.setProperty("--color", headColor(head, this.heads));
      chip.setAttribute("aria-label", `head ${head + 1}`);
      chip.addEventListener("click", () => this.toggle(head));
      chip.addEventListener("dblclick", () => this.set({ head, heads: new Set([head]) }));
      return chip;
    });
    const toggleAll = () => this.set({ heads: new Set(this.state.heads.size === all.length ? [] : all) });
    this.allChip = element("button", { type: "button", class: "chip all", onclick: toggleAll }, "all");
    return element("div", { class: "control heads", role: "group", "aria-label": "heads" }, "heads ", ...this.chips, this.allChip);
  }

  filterControl() {
    const options = Object.entries(PAIR_FILTERS).map(([value, shown]) => element("option", { value }, shown));
    const change = (event) => this.set({ filter: event.target.value });
    this.filterSelect = element("select", { "aria-label": "which text attends to which", onchange: change }, ...options);
    return element("label", { class: "control filter" }, "texts ", this.filterSelect);
  }

  hideControl() {
    const special = new Set(this.data.tokens.filter((_, token) => this.data.special?.[token]));
    const change = (event) => this.set({ hide: event.target.checked });
    const box = element("input", { type: "checkbox", onchange: change });
    return element("label", { class: "control hide" }, box, `hide ${[...special, "punctuation"].join(", ")}`);
  }

  /** Buttons that open the clearest head of each kind. */
  worthControl() {
    const buttons = worthSeeing(this.data.catalogue ?? []).map(({ row, name }) => {
      const open = () => this.set({ layer: row.layer - 1, head: row.head - 1, heads: new Set([row.head - 1]) });
      return element("button", { type: "button", class: "link", onclick: open }, `${name}: ${headName(row)}`);
    });
    return element("p", { class: "worth" }, "Heads worth seeing: ", ...buttons);
  }

  toggle(head) {
    if (VIEWS[this.state.view].oneHead) return this.set({ head });
    const heads = new Set(this.state.heads);
    if (!heads.delete(head)) heads.add(head);
    this.set({ heads, head });
  }

  moveTab(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (this.names.indexOf(this.state.view) + step + this.names.length) % this.names.length;
    this.set({ view: this.names[next] });
    this.tabs.querySelector("[aria-selected=true]").focus();
  }

  /** In views of one layer: left and right change the layer, h and H the head. */
  keys(event) {
    if (!controlsOf(this.state.view).includes("layer") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { layer, head } = this.state;
    const layerStep = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const headStep = { h: 1, H: this.heads - 1 }[event.key];
    const nextHead = (head + headStep) % this.heads;
    if (layerStep) this.set({ layer: Math.max(0, Math.min(this.layersOf(this.state.view).length - 1, layer + layerStep)) });
    else if (headStep) this.set({ head: nextHead, heads: new Set([nextHead]) });
    else if (event.key === "Escape") this.set({ token: null });
    else return;
    event.preventDefault();
  }

  showStatus(text) { this.status.textContent = text; }

  /** The packed layers that a view draws. */
  layersOf(view) { return VIEWS[view].part ? this.data[VIEWS[view].part].layers : this.data.layers; }

  /** The numbers of a layer of a view, unpacked when first used. */
  layer(view, number) { return (this.layers[`${VIEWS[view].part ?? ""} ${number}`] ??= Layer.read(this.layersOf(view)[number])); }

  /** Change what is shown, and draw it. */
  async set(change) {
    const start = performance.now();
    Object.assign(this.state, change);
    const { view, layer } = this.state;
    const update = ++this.updates;
    const needed = controlsOf(view).includes("layer") ? await this.layer(view, layer) : null;
    if (update !== this.updates) return; // the state changed while this layer was unpacked
    this.showControls();
    this.views[view] ??= new VIEWS[view](this);
    if (this.panel.firstChild !== this.views[view].element) this.panel.replaceChildren(this.views[view].element);
    await this.views[view].draw(needed);
    this.prepareNeighbors(needed && layer);
    Object.assign(this.host.dataset, { view, layer: layer + 1, turn: update, milliseconds: Math.round(performance.now() - start) });
  }

  /** Unpack the neighboring layers while the browser is idle. */
  prepareNeighbors(layer) {
    if (layer === null || !globalThis.requestIdleCallback) return;
    for (const next of [layer + 1, layer - 1]) {
      const { view } = this.state;
      if (this.layersOf(view)[next]) requestIdleCallback(() => this.layer(view, next));
    }
  }

  showControls() {
    const { view, layer, head, heads, filter } = this.state;
    const { title, controls = [], oneHead = false, caption } = VIEWS[view];
    for (const tab of this.tabs.children) {
      const chosen = tab.dataset.view === view;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen) this.tabs.scrollLeft = tab.offsetLeft - (this.tabs.clientWidth - tab.offsetWidth) / 2;
    }
    this.panel.setAttribute("aria-label", title);
    this.controls.hidden = !controls.length;
    this.caption.hidden = !caption;
    this.caption.textContent = caption?.(this) ?? "";
    this.worth.hidden = !caption || VIEWS[view].part !== undefined || !this.data.catalogue?.length;
    this.layerSelect.value = layer;
    this.filterSelect.value = filter;
    this.filterSelect.parentElement.hidden = !controls.includes("filter") || this.data.pair === null;
    this.controls.querySelector(".hide").hidden = !controls.includes("hide");
    this.allChip.hidden = oneHead;
    this.chips.forEach((chip, n) => chip.setAttribute("aria-pressed", oneHead ? n === head : heads.has(n)));
  }

  resized() {
    const width = this.host.clientWidth;
    if (width !== this.width && this.width !== undefined) this.set({});
    offerMore(this.host);
    fadeEdges(this.tabs);
    this.width = width;
  }
}
