// The overview's numbers over time: totals, chart, top lists, sessions, today and yesterday. They are asked for when the
// range or a filter changes, and again after a micro-batch.

import { ask, filesOf } from "./api.js";
import { Chart } from "./chart.js";
import * as controls from "./controls.js";
import { $, attribute, make, pairs, put, rows } from "./dom.js";
import * as lists from "./lists.js";
import { now_ms, snapshot } from "./live.js";
import { canExplore, filled, rangeOf } from "./range.js";
import { state, zone } from "./state.js";
import * as zones from "./zones.js";
import { age, capitalized, clock, count, duration, rate } from "./words.js";

// After a micro-batch the numbers are asked for again, at most this often, and for at most a tenth of the time.
const AGAIN_MS = { counts: 2_000, archive: 15_000, failed: 5_000 };
const PAUSE_PER_LOAD = 9;
const SLOW_MS = 1_000;
const UNKNOWN = "–";

const view = { capabilities: null, range: null, controller: null, startedAt: null, endedAt: -Infinity, batch: null, newest_ms: null, points: [], totals: null, took_ms: 0, hasFailed: false };
let chart = null;

export function begin() {
  chart = new Chart($("chart"), $("readout"));
  controls.begin();
  $("table").addEventListener("toggle", showTable);
}

/** What can be asked for; null until it is known. */
export function setCapabilities(capabilities) {
  view.capabilities = capabilities;
  view.newest_ms = Math.max(capabilities.newest_ms ?? 0, view.newest_ms ?? 0) || null;
  load();
}

/** Called when the address changed. */
export function load() {
  if (!view.capabilities || state().view !== "overview") { view.controller?.abort(); return; }
  arrange();
  loadRange({ isRepeated: false });
}

/** Called for each snapshot and every second: shows live numbers, and asks again after a micro-batch. */
export function refresh() {
  const current = snapshot();
  if (!view.capabilities || !current?.counted || state().view !== "overview") return;
  if (view.range?.isLive) showLive(current);
  if (view.startedAt !== null) { showProgress(); return; }
  const kind = view.range.where.length ? "archive" : view.hasFailed ? "failed" : "counts";
  const again_ms = Math.max(AGAIN_MS[kind], PAUSE_PER_LOAD * view.took_ms);
  const isNew = current.batch && current.batch.number !== view.batch;
  if ((isNew || view.hasFailed) && !document.hidden && performance.now() - view.endedAt > again_ms) loadRange({ isRepeated: true });
}

function arrange() {
  view.range = rangeOf(state(), view.capabilities, view.newest_ms ?? now_ms(), zone());
  controls.show(view.range, view.capabilities);
  const explores = canExplore(view.capabilities);
  for (const fact of document.querySelectorAll("[data-over-time]")) fact.hidden = fact.dataset.overTime !== String(explores);
  lists.arrange(["uid", ...dimensions()], (name) => loadList(name));
}

/** Names of the dimensions; every job has the operating system. */
function dimensions() {
  const names = view.capabilities.dimensions.map(({ name }) => name);
  return names.length ? names : ["os"];
}

async function loadRange({ isRepeated }) {
  view.controller?.abort();
  const controller = new AbortController();
  view.controller = controller;
  view.startedAt = performance.now();
  view.hasFailed = false;
  view.batch = snapshot()?.batch?.number ?? null;
  if (!isRepeated) $("series").setAttribute("aria-busy", "true");
  try {
    await loadParts(controller.signal);
  } finally {
    if (view.controller === controller) {
      view.took_ms = performance.now() - view.startedAt;
      Object.assign(view, { startedAt: null, endedAt: performance.now() });
      $("series").setAttribute("aria-busy", "false");
      showProgress();
    }
  }
}

async function loadParts(signal) {
  await part(signal, loadNow, () => put($("active"), UNKNOWN));
  if (signal.aborted) return;
  arrange();
  const isAsked = (name) => !view.range.isLive || name !== "os" || lists.lengthOf(name) === lists.LONG;
  view.totals = view.range.isLive ? null : loadTotals(signal);
  const parts = [view.totals, ...["uid", ...dimensions().filter(isAsked)].map((name) => loadList(name, signal))];
  if (!view.range.isLive) parts.push(loadSeries(signal), loadSessions(signal));
  if (canExplore(view.capabilities)) parts.push(part(signal, loadToday, (error) => { put($("today"), UNKNOWN); put($("today-note"), error); }));
  $("sessions").hidden = view.range.isLive || !view.capabilities.sessions;
  await Promise.all(parts);
}

/** Runs one part of the page; a refusal is shown where its numbers would be. */
async function part(signal, run, refuse) {
  try {
    await run(signal);
  } catch (error) {
    if (signal.aborted) return;
    view.hasFailed = true;
    refuse(capitalized(error.message), error);
  }
}

// Facts

async function loadNow(signal) {
  const { body } = await ask("now", {}, signal);
  view.newest_ms = body.newest_ms ?? view.newest_ms;
  put($("active"), body.active === null ? UNKNOWN : count(body.active));
  const none = view.capabilities.sessions ? "no event is counted yet" : "the job counts no sessions";
  put($("active-note"), body.active === null ? none : `users, last event at most ${age(body.active_gap_ms)} before the newest`);
}

async function loadToday(signal) {
  const { body } = await ask("today/total", { tz: zone(), users: "false" }, signal);
  put($("today"), count(body.events));
  const [events, before] = [Number(body.events), Number(body.before_events)];
  const change = before ? `${events < before ? "−" : "+"}${Math.abs(((events - before) / before) * 100).toFixed(0)}%` : "";
  const until = zones.time(body.end_ms, zone());
  put($("today-note"), before ? `events, ${change} on yesterday until ${until} (${count(body.before_events)})` : `events until ${until}, none yesterday`);
  $("today").title = zones.date(body.start_ms, zone());
}

// Chart and totals

const rangeParameters = (without = null) => {
  const { from, to } = view.range;
  const where = state().filters.filter(([dimension]) => dimension !== without).map(([dimension, value]) => `${dimension}=${value}`);
  return { from, to, where };
};

const seriesRequest = () => (view.range.range === "today"
  ? ["today", { tz: zone(), where: view.range.where, users: String(state().metric === "users") }]
  : ["series", { per: view.range.per, tz: zone(), ...rangeParameters(), users: String(state().metric === "users") }]);

async function loadSeries(signal) {
  await part(signal, async () => {
    const request = seriesRequest();
    const { body, source } = await ask(...request, signal);
    view.points = view.range.range === "today" ? body : filled(body, view.range, zone());
    lists.exportLinks($("series-exports"), filesOf(...request, "onceflow-series"));
    showSeries(source);
  }, (text) => {
    view.points = [];
    showSeries(null);
    lists.exportLinks($("series-exports"), []);
    put($("chart-none"), text);
    $("chart-none").hidden = false;
    $("chart").hidden = true;
  });
}

function showSeries(source) {
  const { metric, chart: kind } = state();
  const { range, per, from, to } = view.range;
  const points = view.points.map((row) => ({ ...row, value: asNumber(row[metric]), before: range === "today" ? asNumber(row[`before_${metric}`]) : null }));
  const known = points.filter(({ value }) => value !== null);
  const peak = known.reduce((most, point) => (most === null || point.value > most.value ? point : most), null);
  const name = metric === "events" ? "Events" : metric === "clicks" ? "Clicks" : "Users";
  const when = range === "today" ? "today and yesterday" : `${zones.dateTime(from, zone())} – ${zones.dateTime(to, zone())}`;
  const summary = peak && peak.value > 0 ? `peak ${count(peak.value)}` : "";
  attribute($("series"), "data-source", source);
  put($("chart-title"), `${name} per ${per}`);
  put($("chart-note"), `${when}${sourceNote(source)}${range === "today" ? ", dashed: yesterday" : ""}`);
  $("chart").hidden = false;
  $("chart-none").hidden = true;
  const read = (point) => {
    const before = point.before === null ? "" : `, yesterday ${count(point.before)}`;
    return `${zones.bucket(point.start_ms, point.end_ms, per, zone())} · ${count(point.value)}${before}`;
  };
  chart.show({ points, kind, zone: zone(), summary, read, label: `${name} per ${per}, ${when}${summary ? `: ${summary}` : ": none"}` });
  showTable();
}

const asNumber = (value) => (value === null || value === undefined ? null : Number(value));

const sourceNote = (source) => ({ counts: ", as of the last micro-batch", archive: ", from the archive and the log behind it" })[source] ?? "";

function showTable() {
  if (!$("table").open) return;
  rows($("table-rows"), view.points.filter(({ events }) => events !== null), tableRow, (row, point) => {
    const [from, events, clicks, users] = row.children;
    put(from, view.range.per === "day" ? zones.date(point.start_ms, zone()) : zones.dateTime(point.start_ms, zone()));
    put(events, count(point.events));
    put(clicks, count(point.clicks));
    put(users, usersText(point));
  });
}

function tableRow() {
  const from = make("th", "");
  from.scope = "row";
  return make("tr", "", from, ...["events", "clicks", "users"].map(() => make("td", "number")));
}

const usersText = ({ users, users_exact: exact }) => (users === null || users === undefined ? UNKNOWN : `${exact === false ? "~" : ""}${count(users)}`);

/** Shows the range's totals and returns them; null if they are refused. */
async function loadTotals(signal) {
  let totals = null;
  await part(signal, async () => {
    const { body } = await ask("totals", rangeParameters(), signal);
    totals = body;
    controls.showMetric("events", count(body.events));
    controls.showMetric("clicks", count(body.clicks));
    controls.showMetric("users", usersText(body));
  }, () => { for (const name of ["events", "clicks", "users"]) controls.showMetric(name, UNKNOWN); });
  return totals;
}

async function loadSessions(signal) {
  if (!view.capabilities.sessions) return;
  const { from, to, where } = view.range;
  if (where.length) {
    put($("sessions-note"), "Sessions have no dimensions: clear the filters to see their numbers.");
    pairs($("sessions-pairs"), []);
    return;
  }
  await part(signal, async () => {
    const { body } = await ask("sessions/summary", { from, to }, signal);
    put($("sessions-note"), "started in this range");
    pairs($("sessions-pairs"), [
      ["Sessions", count(body.sessions)],
      ["Users", count(body.users)],
      ["Events each", body.mean_events === null ? UNKNOWN : rate(body.mean_events)],
      ["Mean length", body.mean_seconds === null ? UNKNOWN : duration(body.mean_seconds * 1_000)],
    ]);
  }, (text) => { put($("sessions-note"), text); pairs($("sessions-pairs"), []); });
}

// Lists

async function loadList(dimension, signal = view.controller?.signal ?? new AbortController().signal) {
  const limit = lists.lengthOf(dimension);
  const { isLive } = view.range;
  const parameters = isLive ? { dimension, from: "all", limit } : { dimension, ...rangeParameters(dimension), limit };
  // The snapshot's live users are shown until someone asks for more of them.
  if (isLive && dimension === "uid" && limit === lists.SHORT) return;
  await part(signal, async () => {
    const { body, source } = await ask("top", parameters, signal);
    const isWhole = !state().filters.some(([name]) => name === dimension);
    const totals = isLive ? snapshot().totals : await view.totals;
    if (signal.aborted) return;
    lists.show(dimension, body.map(({ value, clicks }) => [value, clicks]), {
      whole: isWhole && totals ? totals.clicks : null,
      filters: view.capabilities.filters,
      source,
      file: ["top", parameters, `onceflow-top-${dimension.replace(/\W/g, "_")}`],
    });
  }, (text) => lists.fail(dimension, text));
}

// Live: everything counted so far, exact now

function showLive({ top, os, totals, rate: series }) {
  const others = os.length > 8 ? os.at(-1) : null;
  const { filters } = view.capabilities;
  if (lists.lengthOf("uid") === lists.SHORT) {
    lists.show("uid", top.map(({ uid, clicks }) => [uid, clicks]), { whole: totals.clicks, file: ["top", { dimension: "uid", from: "all" }, "onceflow-top-uid"] });
  }
  if (lists.lengthOf("os") === lists.SHORT) {
    lists.show("os", os.slice(0, 8).map(({ name, clicks }) => [name, clicks]), {
      whole: totals.clicks, filters, others: others && [others.name, others.clicks], file: ["top", { dimension: "os", from: "all" }, "onceflow-top-os"],
    });
  }
  showRate(series);
}

function showRate({ begin_ms, step_ms, per_second }) {
  const points = per_second.map((value, index) => ({ start_ms: begin_ms + index * step_ms, end_ms: begin_ms + (index + 1) * step_ms, value }));
  const known = per_second.filter((value) => value !== null);
  const summary = known.length ? `peak ${rate(Math.max(...known))}` : "";
  attribute($("series"), "data-source", null);
  put($("chart-title"), "Events counted per second");
  put($("chart-note"), "by the finish time of the micro-batch, in steps of 10 s");
  $("chart").hidden = false;
  $("chart-none").hidden = true;
  const label = `Events counted per second over the last ten minutes: ${known.length ? `last ${rate(known.at(-1))}, ${summary}` : "no data yet"}`;
  const read = ({ start_ms, end_ms, value }) => `${clock((start_ms + end_ms) / 2)} · ${rate(value)} per second`;
  chart.show({ points, kind: "bars", zone: zone(), summary, read, label });
}

function showProgress() {
  const old_ms = view.startedAt === null ? 0 : performance.now() - view.startedAt;
  const isLong = old_ms > SLOW_MS && $("series").getAttribute("aria-busy") === "true";
  put($("progress"), isLong ? `Counting… ${age(old_ms)}` : "");
}
