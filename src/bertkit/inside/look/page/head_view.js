// The head view: tokens on both sides, and lines from each token to those it attends to, in the color of the head.

import { largest } from "./numbers.js";
import { TokenView, element, headColor, number, tokenText } from "./drawing.js";

const MAX_LINES = 6; // for each token and head, while no token is chosen
const MAX_FOCUS_LINES = 60; // for a chosen token
const MIN_WEIGHT = 0.015; // lines of smaller weights are not visible
export const PAIR_FILTERS = { all: "all", "0-0": "A → A", "0-1": "A → B", "1-0": "B → A", "1-1": "B → B" };

export class HeadView extends TokenView {
  static title = "Heads";
  static controls = ["layer", "heads", "filter"];
  static needs = "heads";

  constructor(app, sides = { left: app.data.tokens, right: app.data.tokens }, headings = ["query", "key"]) {
    super(app, 22, "tokens and what they attend to", Math.max(sides.left.length, sides.right.length));
    this.sides = sides; // the tokens that attend, and those that are attended to
    this.hovered = null; // {side, row}
    this.list.heading.append(...headings.map((heading) => element("span", {}, heading)));
  }

  draw(layer) {
    this.layer = layer;
    this.list.chosen = this.app.state.token;
    this.list.draw();
    this.describe();
  }

  choose(row, event) {
    if (row === null || row >= this.sides.left.length || (event.type === "click" && this.side(event) === "right")) return;
    this.app.set({ token: row === this.app.state.token && event.type === "click" ? null : row });
  }

  side(event) {
    const box = this.list.stage.getBoundingClientRect();
    return event.clientX > box.left + box.width / 2 ? "right" : "left";
  }

  hover(row, event) {
    const over = row === null ? null : { side: this.side(event), row };
    const next = over && row < this.sides[over.side].length ? over : null;
    if (next?.side === this.hovered?.side && next?.row === this.hovered?.row) return;
    this.hovered = next;
    this.list.schedule();
    this.describe();
  }

  /** The focused token: the one under the mouse, else the chosen one. */
  focus() {
    const { token } = this.app.state;
    return this.hovered ?? (token === null || token >= this.sides.left.length ? null : { side: "left", row: token });
  }

  allowed(from, to) {
    const { parts } = this.app.data;
    return this.app.state.filter === "all" || this.app.state.filter === `${parts[from]}-${parts[to]}`;
  }

  /** The weights of a head from (or, on the right, to) the focused token, filtered. */
  weights(head, { side, row }) {
    const weights = side === "left" ? this.layer.row(head, row) : this.layer.column(head, row);
    for (let other = 0; other < weights.length; other++) {
      const [from, to] = side === "left" ? [row, other] : [other, row];
      if (!this.allowed(from, to)) weights[other] = 0;
    }
    return weights;
  }

  paint(list) {
    const focus = this.focus();
    const edge = Math.min(200, list.width * 0.36);
    const shades = focus ? this.mean(focus) : null;
    const most = shades ? Math.max(...shades) : 0;
    for (let row = list.first; row < list.last; row++) {
      for (const side of ["left", "right"]) {
        if (row >= this.sides[side].length) continue;
        const cell = element("div", { class: `cell ${side}` }, tokenText(this.sides[side][row]));
        if (focus?.side === side && focus.row === row) cell.classList.add("chosen");
        else if (focus && focus.side !== side && most) cell.style.setProperty("--shade", shades[row] / most);
        list.put(cell, row, side === "left" ? 0 : list.width - edge, edge);
      }
    }
    const ends = { left: edge, right: list.width - edge };
    if (focus) this.lines(list, focus, MAX_FOCUS_LINES, ends);
    else for (let row = list.first; row < Math.min(list.last, this.sides.left.length); row++) this.lines(list, { side: "left", row }, MAX_LINES, ends);
  }

  lines(list, focus, count, { left, right }) {
    const middle = list.height / 2;
    for (const head of this.app.state.heads) {
      const weights = this.weights(head, focus);
      for (const other of largest(weights, count)) {
        if (weights[other] < MIN_WEIGHT) break;
        const [from, to] = focus.side === "left" ? [focus.row, other] : [other, focus.row];
        list.context.strokeStyle = headColor(head, this.app.heads, Math.min(1, weights[other]));
        list.context.lineWidth = 1.5;
        list.context.beginPath();
        list.context.moveTo(left, list.y(from) + middle);
        list.context.lineTo(right, list.y(to) + middle);
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
    if (!focus || !this.app.state.heads.size) return this.app.showStatus("Point at a token, or choose one with ↑ ↓; ← → change the layer.");
    const mean = this.mean(focus);
    const others = this.sides[focus.side === "left" ? "right" : "left"];
    const shown = largest(mean, 5).filter((token) => mean[token] > 0).map((token) => `${others[token]} ${number(mean[token])}`);
    this.app.showStatus(`${this.sides[focus.side][focus.row]} (${focus.row}) ${focus.side === "left" ? "attends to" : "is attended to by"}: ${shown.join(",  ")}`);
  }
}
