// The last ten minutes as a line. A missing point is a gap; a line that stopped, stops short of the right edge.

import { h, setAttribute, setText, svg } from "./dom.js";
import { age, count, known } from "./format.js";

const SPAN = 600; // seconds from the left edge to the right edge; the drawing's x unit is the second
const HEIGHT = 40;
const MARGIN = 3;

export class Spark {
  /** `ratio`: the scale is 0 to 1; otherwise it is 0 to the largest value shown. */
  constructor(label, { format = count, ratio = false } = {}) {
    Object.assign(this, { label, format, ratio, key: null, points: [] });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.cursor = svg("path", { class: "cursor" });
    this.picture = svg(
      "svg",
      { role: "img", viewBox: `0 0 ${SPAN} ${HEIGHT}`, preserveAspectRatio: "none" },
      svg("path", { class: "base", d: `M0 ${HEIGHT - MARGIN}H${SPAN}` }), this.area, this.line, this.cursor,
    );
    this.caption = h("figcaption", { "aria-hidden": "true" });
    this.root = h("figure", { class: "spark" }, this.picture, this.caption);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.leave());
    this.describe();
  }

  /** `history` as in the state's JSON, `name` its series, `now` the server's clock. */
  update(history, name, now) {
    const values = history?.series?.[name];
    const step = known(history?.step_seconds) && history.step_seconds > 0 ? history.step_seconds : 5;
    const end = known(history?.end) ? history.end : now;
    // Whole steps only: redrawing for a shift of a fraction of a pixel would cost and show nothing.
    const lag = Math.max(0, Math.floor((now - end) / step)) * step;
    const list = Array.isArray(values) ? values : [];
    const key = `${end}|${lag}|${list.length}|${list.at(-1)}`;
    if (key === this.key) return;
    this.key = key;
    this.points = list
      .map((value, i) => ({ x: SPAN - lag - (list.length - 1 - i) * step, value: known(value) ? value : null }))
      .filter((point) => point.x >= 0);
    this.draw();
    this.describe();
  }

  draw() {
    const top = this.ratio ? 1 : Math.max(...this.points.map((p) => p.value ?? 0), 0) || 1;
    const floor = HEIGHT - MARGIN;
    const y = (value) => (floor - (Math.min(Math.max(value, 0), top) / top) * (HEIGHT - 2 * MARGIN)).toFixed(1);
    let line = "";
    let area = "";
    let run = [];
    const finish = () => {
      if (run.length) {
        const path = run.map((p) => `${p.x} ${y(p.value)}`).join("L");
        line += `M${path}${run.length === 1 ? "h0" : ""}`; // a lone point is a dot, by the round line cap
        area += `M${run[0].x} ${floor}L${path}L${run.at(-1).x} ${floor}Z`;
      }
      run = [];
    };
    for (const point of this.points) {
      if (point.value === null) finish();
      else run.push(point);
    }
    finish();
    setAttribute(this.line, "d", line || null);
    setAttribute(this.area, "d", area || null);
  }

  describe() {
    const there = this.points.filter((p) => p.value !== null);
    if (!there.length) {
      this.text = "no history";
      setAttribute(this.picture, "aria-label", `${this.label}, last 10 minutes: no data`);
    } else {
      const values = there.map((p) => p.value);
      const [low, high] = [Math.min(...values), Math.max(...values)].map((v) => this.format(v));
      const silent = SPAN - there.at(-1).x;
      this.text = low === high ? `steady at ${low}` : `${low} to ${high}`;
      setAttribute(
        this.picture, "aria-label",
        `${this.label}, last 10 minutes: lowest ${low}, highest ${high}, last ${this.format(values.at(-1))}` +
          (silent ? ` ${age(silent)} ago` : "") +
          (there.length < this.points.length ? ", with gaps where nothing was measured" : ""),
      );
    }
    if (!this.pointing) setText(this.caption, this.text);
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * SPAN;
    const near = this.points.reduce((a, b) => (a && Math.abs(a.x - x) <= Math.abs(b.x - x) ? a : b), null);
    if (!near) return;
    this.pointing = true;
    setAttribute(this.cursor, "d", `M${near.x} 0V${HEIGHT}`);
    const value = near.value === null ? "not measured" : this.format(near.value);
    setText(this.caption, `${value}, ${near.x === SPAN ? "now" : `${age(SPAN - near.x)} ago`}`);
  }

  leave() {
    this.pointing = false;
    setAttribute(this.cursor, "d", null);
    setText(this.caption, this.text);
  }
}
