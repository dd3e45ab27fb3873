// Shared by all views: DOM elements, lists that draw only their visible rows, colors.

/** A DOM element; string children become text, never markup. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** A token as text with its own writing direction. */
export function tokenText(label) {
  return element("bdi", { class: "token", title: label }, label);
}

export const number = (value, digits = 3) => value.toFixed(digits).replace("-", "−");

/** The color of a head; hues are evenly spaced. */
export function headColor(head, heads, alpha = 1) {
  return `hsl(${Math.round((head * 360) / heads + 210) % 360} 70% 50% / ${alpha})`;
}

/** Blue above zero, orange below; the opacity is the absolute value relative to `most`. */
export function signColor(value, most) {
  const strength = most ? Math.min(1, Math.abs(value) / most) : 0;
  return value >= 0 ? `rgb(35 110 235 / ${strength})` : `rgb(240 125 20 / ${strength})`;
}

/** The scale of a color: from `low`, transparent, to `high`; below zero orange. */
export function legend(name, low, high) {
  const bar = element("span", { class: low < 0 ? "ramp signed" : "ramp" });
  return element("span", { class: "ramp-key" }, element("span", { class: "of" }, name), `${low}`.replace("-", "−"), bar, `${high}`);
}

/** A vector as a strip of colored cells. */
export function strip(context, vector, { x, y, width, height, most }) {
  const cell = width / vector.length;
  for (let n = 0; n < vector.length; n++) {
    context.fillStyle = signColor(vector[n], most);
    context.fillRect(x + n * cell, y, Math.max(cell - (cell > 3 ? 0.5 : 0), 0.5), height);
  }
}

/** An empty drawing context of this size in CSS pixels, sharp on any screen. */
export function prepare(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Set `data-fade` where an element that scrolls sideways has more to show: start, end, both or nothing. */
export function fadeEdges(node) {
  const hidden = { start: node.scrollLeft > 1, end: node.scrollLeft + node.clientWidth < node.scrollWidth - 1 };
  node.dataset.fade = hidden.start && hidden.end ? "both" : hidden.start ? "start" : hidden.end ? "end" : "";
}

/**
 * A view that is a scrolling list with a row for each token. `paint(list)` of the view draws the visible rows: it puts
 * elements into rows with `list.put`, and draws lines and strips on `list.context`, whose origin is the top left corner
 * of the visible part. `hover(row, event)` is called with the row under the mouse, or null.
 */
export class TokenView {
  constructor(app, height, label, count = app.data.tokens.length) {
    this.app = app;
    this.list = new Rows(this, count, height, label);
    this.element = this.list.stage;
  }

  choose(row) {
    if (row !== null) this.app.set({ token: row });
  }
}

class Rows {
  constructor(view, count, height, label) {
    Object.assign(this, { view, height });
    this.heading = element("div", { class: "heading" });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.body = element("div", { class: "body" });
    this.resize(count);
    const pane = element("div", { class: "pane" }, this.canvas);
    this.stage = element(
      "div",
      { class: "stage", tabindex: "0", role: "group", "aria-label": label },
      this.heading, pane, this.body,
    );
    this.stage.addEventListener("scroll", () => this.schedule(), { passive: true });
    // Not "click": it is lost where the rows were drawn again between its press and its release.
    this.stage.addEventListener("pointerdown", (event) => { this.pressed = event.button === 0 ? this.at(event) : undefined; });
    this.stage.addEventListener("pointerup", (event) => {
      if (event.button === 0 && this.at(event) === this.pressed) view.choose(this.pressed, event);
    });
    this.stage.addEventListener("mousemove", (event) => view.hover(this.at(event), event));
    this.stage.addEventListener("mouseleave", () => view.hover(null, null));
    this.stage.addEventListener("keydown", (event) => this.step(event));
  }

  /** Change the number of rows. */
  resize(count) {
    this.count = count;
    this.body.style.height = `${count * this.height}px`;
  }

  /** The row under the mouse, or null. */
  at(event) {
    const row = Math.floor((event.clientY - this.body.getBoundingClientRect().top) / this.height);
    const below = event.clientY >= this.stage.getBoundingClientRect().top + this.heading.offsetHeight;
    return below && row >= 0 && row < this.count ? row : null;
  }

  step(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -this.count, End: this.count };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(this.count - 1, (this.chosen ?? -1) + steps[event.key]));
    this.view.choose(next, event);
    this.show(next);
  }

  /** Scroll until a row is visible. */
  show(row) {
    const top = row * this.height;
    const room = this.stage.clientHeight - this.heading.offsetHeight - this.height;
    if (top < this.stage.scrollTop) this.stage.scrollTop = top;
    else if (top > this.stage.scrollTop + room) this.stage.scrollTop = top - room;
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.width = this.stage.clientWidth;
    this.visibleHeight = Math.min(this.stage.clientHeight - this.heading.offsetHeight, this.count * this.height);
    this.top = this.stage.scrollTop;
    this.first = Math.max(0, Math.floor(this.top / this.height));
    this.last = Math.min(this.count, Math.ceil((this.top + this.visibleHeight) / this.height));
    this.context = prepare(this.canvas, this.width, Math.max(this.visibleHeight, 0));
    this.body.replaceChildren();
    this.view.paint(this);
  }

  /** The top of a row on the canvas. */
  y(row) { return row * this.height - this.top; }

  /** Put an element into a row, at `x` and `width` wide. */
  put(node, row, x, width) {
    Object.assign(node.style, { top: `${row * this.height}px`, left: `${x}px`, width: `${width}px`, height: `${this.height}px` });
    node.dataset.row = row;
    this.body.append(node);
    return node;
  }
}
