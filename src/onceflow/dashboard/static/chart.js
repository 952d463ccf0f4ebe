// Chart of events counted per second: one bar for each closed bucket, drawn by uPlot in the colours of the style sheet.

import { rate, clock } from "./words.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class RateChart {
  constructor(element, readout) {
    this.element = element;
    this.readout = readout;
    this.data = [[], []];
    this.plot = null;
    new ResizeObserver(() => this.resize()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Shows values per second, one per `step_ms` starting at `begin_ms`; null is unknown. */
  show({ begin_ms, step_ms, per_second }) {
    const at = per_second.map((_, index) => (begin_ms + (index + 0.5) * step_ms) / 1_000);
    this.data = [at, per_second];
    this.half_step = step_ms / 2_000;
    const known = per_second.filter((value) => value !== null);
    const peak = known.length ? Math.max(...known) : null;
    this.peak = peak === null ? "" : `peak ${rate(peak)}`;
    const summary = peak === null ? "no data yet" : `last ${rate(known.at(-1))}, ${this.peak}`;
    this.element.setAttribute("aria-label", `Events counted per second over the last ten minutes: ${summary}`);
    if (this.plot) this.plot.setData(this.data); else this.draw();
    if (this.plot && this.plot.cursor.idx == null) this.readout.textContent = this.peak;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    if (!this.plot) this.draw();
    else if (this.plot.width !== width || this.plot.height !== height) this.plot.setSize({ width, height });
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.element;
    this.plot?.destroy();
    this.plot = null;
    if (width && height) this.plot = new uPlot(this.options(width, height), this.data, this.element);
  }

  options(width, height) {
    const font = `13px ${color("--sans")}`;
    const axis = { stroke: color("--muted"), font, ticks: { show: false } };
    return {
      width, height, padding: [10, 34, 0, 6],
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { size: 7 } },
      scales: { x: { range: (_, low, high) => [low - this.half_step, high + this.half_step] }, y: { range: (_, __, high) => [0, Math.max(4, high * 1.12)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 30, space: 90, values: (_, splits, __, ___, step) => splits.map((second) => clock(second * 1_000, step < 60)) },
        { ...axis, grid: { stroke: color("--rule"), width: 1 }, size: 52, gap: 8, space: 40, values: (_, splits) => splits.map(rate) },
      ],
      series: [{}, {
        stroke: color("--accent"), width: 1, fill: color("--accent-soft"), points: { show: false },
        paths: uPlot.paths.bars({ size: [0.9, 40, 1] }), spanGaps: false,
      }],
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)] },
    };
  }

  read(index) {
    const value = index == null ? null : this.data[1][index];
    this.readout.textContent = value == null ? this.peak ?? "" : `${clock(this.data[0][index] * 1_000)} · ${rate(value)} per second`;
  }
}
