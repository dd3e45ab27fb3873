// The head view: tokens on both sides, and lines from each token to those it attends to, in the color of the head.

import { largest } from "./numbers.js";
import { headCaption, placed, quoted } from "./captions.js";
import { TokenView, element, headColor, legend, number, tokenText } from "./drawing.js";

const MAX_LINES = 6; // for each token and head, while no token is chosen
const MAX_FOCUS_LINES = 60; // for a chosen token
const MIN_WEIGHT = 0.015; // lines of smaller weights are not visible
const MAX_GAP = 360; // pixels between the columns: over longer lines the eye loses its way
const MAX_EDGE = 230; // pixels of a column
const STRIP = 8; // pixels: the strip of one head, less if there are many
export const PAIR_FILTERS = { all: "all", "0-0": "A → A", "0-1": "A → B", "1-0": "B → A", "1-1": "B → B" };

export class HeadView extends TokenView {
  static title = "Heads";
  static controls = ["layer", "heads", "filter", "hide"];
  static needs = "heads";

  static caption({ state, data }) {
    const [head, ...others] = [...state.heads].sort((one, other) => one - other);
    if (head === undefined) return `Layer ${state.layer + 1}: no head is chosen`;
    if (!others.length) return headCaption(data.catalogue[state.layer * data.heads + head], data.tokens.length);
    return `Layer ${state.layer + 1}, heads ${[head, ...others].map((n) => n + 1).join(", ")}: a color for each head`;
  }

  constructor(app, sides = { left: app.data.tokens, right: app.data.tokens }, names = ["query", "key"]) {
    super(app, 22, "tokens and what they attend to");
    this.sides = sides; // the tokens that attend, and those that are attended to
    this.hovered = null; // {side, token}
    this.names = names.map((name) => element("span", { class: "name" }, name));
    this.list.heading.classList.add("sides");
    this.list.heading.append(...this.names, legend("weight", 0, 1));
  }

  draw(layer) {
    this.layer = layer;
    this.shown = { left: this.visible(this.sides.left), right: this.visible(this.sides.right) };
    this.rows = { left: rowsOf(this.shown.left), right: rowsOf(this.shown.right) };
    this.list.resize(Math.max(this.shown.left.length, this.shown.right.length));
    const chosen = this.shown.left.indexOf(this.app.state.token);
    this.list.chosen = chosen < 0 ? null : chosen;
    this.list.draw();
    this.describe();
  }

  /** The positions of the tokens that are shown. */
  visible(tokens) {
    const all = [...tokens.keys()];
    const words = this.app.state.hide ? all.filter((token) => !this.app.minor[token]) : all;
    return words.length ? words : all;
  }

  choose(row, event) {
    const token = row === null ? undefined : this.shown.left[row];
    const mouse = event.type !== "keydown";
    if (token === undefined || (mouse && this.side(event) === "right")) return;
    this.app.set({ token: mouse && token === this.app.state.token ? null : token });
  }

  side(event) {
    const box = this.list.stage.getBoundingClientRect();
    return event.clientX > box.left + box.width / 2 ? "right" : "left";
  }

  hover(row, event) {
    const side = row === null ? null : this.side(event);
    const token = side && this.shown[side][row];
    const next = side && token !== undefined ? { side, token } : null;
    if (next?.side === this.hovered?.side && next?.token === this.hovered?.token) return;
    this.hovered = next;
    this.list.schedule();
    this.describe();
  }

  /** The focused token: the one under the mouse, else the chosen one. */
  focus() {
    const { token } = this.app.state;
    return this.hovered ?? (this.shown.left.includes(token) ? { side: "left", token } : null);
  }

  allowed(from, to) {
    const { data: { parts }, state: { filter, hide }, minor } = this.app;
    return (filter === "all" || filter === `${parts[from]}-${parts[to]}`) && !(hide && (minor[from] || minor[to]));
  }

  /** The weights of a head from (or, on the right, to) the focused token, filtered. */
  weights(head, { side, token }) {
    const weights = side === "left" ? this.layer.row(head, token) : this.layer.column(head, token);
    for (let other = 0; other < weights.length; other++) {
      const [from, to] = side === "left" ? [token, other] : [other, token];
      if (!this.allowed(from, to)) weights[other] = 0;
    }
    return weights;
  }

  /** Left edges of both columns, their width, and the part of it that has the strips of the heads. */
  columns(width) {
    const edge = Math.min(MAX_EDGE, width * 0.36);
    const gap = Math.min(MAX_GAP, width - 2 * edge);
    const left = (width - gap) / 2 - edge;
    return { left, right: left + edge + gap, edge, strip: Math.min(STRIP, (edge * 0.4) / this.app.heads) };
  }

  paint(list) {
    const { state, heads } = this.app;
    const focus = this.focus();
    const columns = this.columns(list.width);
    const strips = columns.strip * heads;
    const mean = focus ? this.mean(focus) : null;
    const [only] = state.heads;
    list.stage.style.setProperty("--tint", state.heads.size === 1 ? headColor(only, heads) : "rgb(var(--accent))");
    this.placeHeading(columns, list.width);
    for (const side of ["left", "right"]) {
      for (const [row, token] of this.shown[side].slice(list.first, list.last).entries()) {
        const cell = element("div", { class: `cell ${side}`, "data-token": token }, tokenText(this.sides[side][token]));
        if (focus?.side === side && focus.token === token) cell.classList.add("chosen");
        else if (focus && focus.side !== side) cell.style.setProperty("--shade", mean[token]);
        list.put(cell, list.first + row, side === "left" ? columns.left + strips : columns.right, columns.edge - strips);
      }
    }
    const left = this.shown.left.slice(list.first, list.last);
    if (focus) this.focused(list, focus, columns);
    else for (const token of left) this.lines(list, { side: "left", token }, MAX_LINES, columns);
  }

  placeHeading({ left, right, edge }, width) {
    Object.assign(this.names[0].style, { right: `${width - left - edge}px` });
    Object.assign(this.names[1].style, { left: `${right}px` });
  }

  /** Lines of one token, and on each target a strip for each head: its weight as opacity. */
  focused(list, focus, columns) {
    this.lines(list, focus, MAX_FOCUS_LINES, columns);
    const side = focus.side === "left" ? "right" : "left";
    const start = side === "left" ? columns.left : columns.right + columns.edge - columns.strip * this.app.heads;
    for (const head of this.app.state.heads) {
      const weights = this.weights(head, focus);
      this.shown[side].slice(list.first, list.last).forEach((token, row) => {
        list.context.fillStyle = headColor(head, this.app.heads, weights[token]);
        list.context.fillRect(start + head * columns.strip, list.y(list.first + row) + 2, columns.strip - 1, list.height - 4);
      });
    }
  }

  lines(list, focus, count, { left, right, edge }) {
    const middle = list.height / 2;
    for (const head of this.app.state.heads) {
      const weights = this.weights(head, focus);
      for (const other of largest(weights, count)) {
        if (weights[other] < MIN_WEIGHT) break;
        const [from, to] = focus.side === "left" ? [focus.token, other] : [other, focus.token];
        list.context.strokeStyle = headColor(head, this.app.heads, Math.min(1, weights[other]));
        list.context.lineWidth = 1.5;
        list.context.beginPath();
        list.context.moveTo(left + edge, list.y(this.rows.left.get(from)) + middle);
        list.context.lineTo(right, list.y(this.rows.right.get(to)) + middle);
        list.context.stroke();
      }
    }
  }

  /** The mean over the chosen heads. */
  mean(focus) {
    const sums = new Float64Array(this.sides[focus.side === "left" ? "right" : "left"].length);
    for (const head of this.app.state.heads) {
      const weights = this.weights(head, focus);
      for (let i = 0; i < sums.length; i++) sums[i] += weights[i] / this.app.state.heads.size;
    }
    return sums;
  }

  /** Show the largest weights of the focused token as text. */
  describe() {
    const focus = this.focus();
    if (!focus || !this.app.state.heads.size) return this.app.showStatus("Point at a token, or choose one with ↑ ↓; ← → change the layer, h the head.");
    const mean = this.mean(focus);
    const others = this.sides[focus.side === "left" ? "right" : "left"];
    const shown = largest(mean, 5).filter((token) => mean[token] >= 0.0005).map((token) => `${quoted(others[token])} ${number(mean[token])}`);
    const verb = focus.side === "left" ? "attends to" : "is attended to by";
    this.app.showStatus(`${placed(this.sides[focus.side][focus.token], focus.token)} ${verb}: ${shown.join(",  ")}`);
  }
}

/** token -> its row. */
const rowsOf = (shown) => new Map(shown.map((token, row) => [token, row]));
