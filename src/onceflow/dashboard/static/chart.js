// A chart of counts over time, drawn by uPlot in the colours of the style sheet: bars or a line, with a second line to
// compare with. Its numbers are also in a table or in the text of its label.

import * as zones from "./zones.js";
import { rate } from "./words.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const whole = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export class Chart {
  constructor(element, readout) {
    this.element = element;
    this.readout = readout;
    this.shown = null;
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /**
   * Shows `points` of {start_ms, end_ms, value, before}; null is unknown. `kind` is bars or line, `zone` the time zone,
   * `label` the text for those who cannot see it, `summary` the text while no point is chosen, and `read(point)` the text
   * of one point.
   */
  show(content) {
    const { points, kind, zone } = content;
    const hasBefore = points.some(({ before }) => before !== undefined && before !== null);
    const old = this.shown;
    this.shown = { ...content, hasBefore };
    this.data = [points.map(({ start_ms, end_ms }) => (start_ms + end_ms) / 2_000), points.map(({ value }) => value)];
    if (hasBefore) this.data.push(points.map(({ before }) => before ?? null));
    this.element.setAttribute("aria-label", content.label);
    const same = old && old.kind === kind && old.zone === zone && old.hasBefore === hasBefore;
    if (this.plot && same) this.plot.setData(this.data); else this.draw();
    if (!this.plot || this.plot.cursor.idx == null) this.readout.textContent = content.summary;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height || !this.shown) return;
    if (!this.plot) this.draw();
    else if (this.plot.width !== width || this.plot.height !== height) this.plot.setSize({ width, height });
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.element;
    this.plot?.destroy();
    this.plot = null;
    if (width && height && this.shown) this.plot = new uPlot(this.options(width, height), this.data, this.element);
  }

  options(width, height) {
    const { zone, hasBefore } = this.shown;
    const font = `13px ${color("--sans")}`;
    const axis = { stroke: color("--muted"), font, ticks: { show: false } };
    const half = () => { const point = this.shown.points.at(-1); return point ? (point.end_ms - point.start_ms) / 2_000 : 0; };
    return {
      width, height, padding: [10, 34, 0, 6],
      legend: { show: false },
      tzDate: (second) => uPlot.tzDate(new Date(second * 1_000), zone),
      cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { size: 7 } },
      scales: { x: { range: (_, low, high) => [low - half(), high + half()] }, y: { range: (_, __, high) => [0, Math.max(4, high * 1.12)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 30, space: 90, values: (_, splits, __, ___, step) => splits.map((second) => moment(second * 1_000, step, zone)) },
        { ...axis, grid: { stroke: color("--rule"), width: 1 }, size: 52, gap: 8, space: 40, values: (_, splits) => splits.map((value) => (value < 10_000 ? rate(value) : whole.format(value))) },
      ],
      series: [{}, this.main(), ...(hasBefore ? [{ stroke: color("--muted"), width: 1.5, dash: [5, 4], points: { show: false } }] : [])],
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)] },
    };
  }

  main() {
    const line = { stroke: color("--accent"), fill: color("--accent-soft"), points: { show: false }, spanGaps: false };
    if (this.shown.kind === "line") return { ...line, width: 2 };
    return { ...line, width: 1, paths: uPlot.paths.bars({ size: [0.9, 40, 1] }) };
  }

  read(index) {
    const point = index == null ? null : this.shown.points[index];
    this.readout.textContent = point && point.value !== null ? this.shown.read(point) : this.shown.summary;
  }
}

/** The text at the axis: a date at midnight, otherwise the time of day. */
function moment(at_ms, step, zone) {
  if (step < 60) return zones.seconds(at_ms, zone);
  const time = zones.time(at_ms, zone);
  return time === "00:00" || step >= 86_400 ? zones.shortDate(at_ms, zone) : time;
}
