// A small line plot on a canvas: time to the right, one or two series (the second one dashed), a scale that fits. Colours come from the style sheet.

import { measure } from "./format.js";
import { make } from "./table.js";

export const SPAN_S = 180;
const SCALE_WIDTH = 44;
const MARGIN = 6;

// 1, 2 or 5 times a power of ten, the first that is not below `value`.
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((nice) => nice >= value * 0.999);
}

export class Plot {
  // `series`: functions from a point of the history to a number, null or NaN where there is none. `least`: the least that the scale reaches.
  constructor(canvas, { name, unit, series, least = 1, most = Infinity }) {
    Object.assign(this, { canvas, name, unit, series, least, most, points: [] });
    const ends = [`${SPAN_S / 60} min ago`, "now"].map((end) => make("span", {}, end));
    canvas.after(make("div", { class: "axis", "aria-hidden": "true" }, ...ends)); // the canvas's own label says as much
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(points) {
    this.points = points;
    this.draw();
    const last = this.series.map((of) => of(points.at(-1))).map((value) => (Number.isFinite(value) ? `${measure(value)} ${this.unit}` : "none"));
    this.canvas.setAttribute("aria-label", `${this.name}: now ${last.join(", ")}; highest in three minutes ${measure(this.#highest())} ${this.unit}`);
  }

  #highest() {
    return Math.max(0, ...this.points.flatMap((point) => this.series.map((of) => of(point) ?? 0)).filter(Number.isFinite));
  }

  draw() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    const pen = canvas.getContext("2d");
    const colours = getComputedStyle(canvas);
    const colour = (name) => colours.getPropertyValue(name).trim();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);

    const top = Math.min(this.most, niceCeiling(Math.max(this.least, this.#highest())));
    const y = (value) => height - MARGIN - (value / top) * (height - 2 * MARGIN);
    pen.font = `11px ${colours.fontFamily}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const value of [0, top / 2, top]) {
      pen.strokeStyle = colour("--line");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(0, Math.round(y(value)) + 0.5);
      pen.lineTo(width - SCALE_WIDTH, Math.round(y(value)) + 0.5);
      pen.stroke();
      pen.fillStyle = colour("--quiet");
      pen.fillText(String(Number(value.toPrecision(3))), width - 4, Math.min(Math.max(y(value), 7), height - 7));
    }
    if (!this.points.length) return;
    const now_s = this.points.at(-1).time_s;
    const x = (point) => (width - SCALE_WIDTH) * (1 - (now_s - point.time_s) / SPAN_S);
    this.series.forEach((of, i) => this.#line(pen, of, x, y, colour(`--plot-${i + 1}`), i ? [5, 3] : [], this.series.length === 1));
  }

  #line(pen, of, x, y, colour, dashes, filled) {
    const pieces = [[]];
    for (const point of this.points) {
      const value = of(point);
      if (Number.isFinite(value) && value !== null) pieces.at(-1).push([x(point), y(Math.min(value, this.most))]);
      else if (pieces.at(-1).length) pieces.push([]);
    }
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, pen.canvas.clientWidth - SCALE_WIDTH, pen.canvas.clientHeight);
    pen.clip();
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.75;
    pen.lineJoin = "round";
    pen.setLineDash(dashes);
    for (const piece of pieces.filter((each) => each.length)) {
      pen.beginPath();
      piece.forEach(([px, py], i) => (i ? pen.lineTo(px, py) : pen.moveTo(px, py)));
      pen.stroke();
      if (!filled) continue;
      pen.lineTo(piece.at(-1)[0], y(0));
      pen.lineTo(piece[0][0], y(0));
      pen.globalAlpha = 0.12;
      pen.fill();
      pen.globalAlpha = 1;
    }
    pen.restore();
  }
}
