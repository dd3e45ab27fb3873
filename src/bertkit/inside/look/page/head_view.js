// The head view: tokens on both sides, and a line from each to what it looks at, in the color of the head.

import { largest } from "./numbers.js";
import { TokenView, element, headColor, number, tokenText } from "./drawing.js";

const LINES = 6; // for each token and head, while no token is chosen
const MORE_LINES = 60; // when one is
const FAINT = 0.015; // below this a line is not seen, so it is not drawn
export const PAIR_FILTERS = { all: "all", "0-0": "A → A", "0-1": "A → B", "1-0": "B → A", "1-1": "B → B" };

export class HeadView extends TokenView {
  static title = "Heads";
  static controls = ["layer", "heads", "filter"];

  constructor(app) {
    super(app, 22, "tokens and what they look at");
    this.hovered = null; // {side, place}
    this.list.heading.append(element("span", {}, "looks"), element("span", {}, "is looked at"));
  }

  draw(layer) {
    this.layer = layer;
    this.list.chosen = this.app.state.token;
    this.list.draw();
    this.tell();
  }

  choose(place, event) {
    if (place === null || (event.type === "click" && this.side(event) === "right")) return;
    this.app.set({ token: place === this.app.state.token && event.type === "click" ? null : place });
  }

  side(event) {
    const box = this.list.stage.getBoundingClientRect();
    return event.clientX > box.left + box.width / 2 ? "right" : "left";
  }

  hover(place, event) {
    const next = place === null ? null : { side: this.side(event), place };
    if (next?.side === this.hovered?.side && next?.place === this.hovered?.place) return;
    this.hovered = next;
    this.list.schedule();
    this.tell();
  }

  /** What is singled out: what the mouse is on, else the chosen token. */
  focus() {
    const { token } = this.app.state;
    return this.hovered ?? (token === null ? null : { side: "left", place: token });
  }

  allowed(from, to) {
    const { parts } = this.app.data;
    return this.app.state.filter === "all" || this.app.state.filter === `${parts[from]}-${parts[to]}`;
  }

  /** The weights of a head from (or, on the right, to) the focused token, filtered. */
  weights(head, { side, place }) {
    const found = side === "left" ? this.layer.row(head, place) : this.layer.column(head, place);
    for (let other = 0; other < found.length; other++) {
      const [from, to] = side === "left" ? [place, other] : [other, place];
      if (!this.allowed(from, to)) found[other] = 0;
    }
    return found;
  }

  paint(list) {
    const { tokens } = this.app.data;
    const focus = this.focus();
    const edge = Math.min(200, list.width * 0.36);
    const shades = focus ? this.mean(focus) : null;
    const most = shades ? Math.max(...shades) : 0;
    for (let row = list.first; row < list.last; row++) {
      for (const side of ["left", "right"]) {
        const cell = element("div", { class: `cell ${side}` }, tokenText(tokens[row]));
        if (focus?.side === side && focus.place === row) cell.classList.add("chosen");
        else if (focus && focus.side !== side && most) cell.style.setProperty("--shade", shades[row] / most);
        list.place(cell, row, side === "left" ? 0 : list.width - edge, edge);
      }
    }
    const lines = { left: edge, right: list.width - edge };
    if (focus) this.lines(list, focus, MORE_LINES, lines);
    else for (let row = list.first; row < list.last; row++) this.lines(list, { side: "left", place: row }, LINES, lines);
  }

  lines(list, focus, count, { left, right }) {
    const middle = list.height / 2;
    for (const head of this.app.state.heads) {
      const weights = this.weights(head, focus);
      for (const other of largest(weights, count)) {
        if (weights[other] < FAINT) break;
        const [from, to] = focus.side === "left" ? [focus.place, other] : [other, focus.place];
        list.context.strokeStyle = headColor(head, this.app.data.heads, Math.min(1, weights[other]));
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
    const sums = new Float64Array(this.app.data.tokens.length);
    for (const head of this.app.state.heads) {
      const weights = this.weights(head, focus);
      for (let i = 0; i < sums.length; i++) sums[i] += weights[i] / this.app.state.heads.size;
    }
    return sums;
  }

  /** The focused token's largest weights, in words and numbers. */
  tell() {
    const focus = this.focus();
    const { tokens } = this.app.data;
    if (!focus || !this.app.state.heads.size) return this.app.say("Point at a token, or choose one with ↑ ↓; ← → change the layer.");
    const mean = this.mean(focus);
    const told = largest(mean, 5).filter((place) => mean[place] > 0).map((place) => `${tokens[place]} ${number(mean[place])}`);
    this.app.say(`${tokens[focus.place]} (${focus.place}) ${focus.side === "left" ? "looks at" : "is looked at by"}: ${told.join(",  ")}`);
  }
}
