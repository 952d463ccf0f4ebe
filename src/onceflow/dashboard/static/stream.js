// The newest events as they arrive, with a pause; events that are late or have no time; and bad events.

import { ask, filesOf } from "./api.js";
import { $, attribute, make, onPlainClick, pairs, put, rows } from "./dom.js";
import { exportLinks } from "./lists.js";
import { snapshot } from "./live.js";
import { change, state, zone } from "./state.js";
import * as zones from "./zones.js";
import { capitalized, count, plural, rate, valuesOf, visible } from "./words.js";

const EVERY_MS = 1_000;
const SLOWLY_MS = 5_000;
const SHOWN = 50;
const VALUE_LETTERS = 300;
const UNKNOWN = "–";

const view = { events: [], waiting: 0, isPaused: false, timer: null, slowTimer: null, controller: null };
const keyOf = ({ partition, offset }) => `${partition}:${offset}`;

export function begin() {
  $("pause").addEventListener("click", () => { view.isPaused = !view.isPaused; showPause(); if (!view.isPaused) readLatest(); });
  exportLinks($("stream-exports"), filesOf("latest", { limit: SHOWN }, "onceflow-events"));
  addEventListener("visibilitychange", load);
}

/** Called when the address or the page's visibility changed: it reads only while its events are seen. */
export function load() {
  const isShown = state().view === "events" && !document.hidden;
  if (isShown === Boolean(view.controller)) return;
  if (!isShown) { view.controller.abort(); view.controller = null; clearTimeout(view.timer); clearTimeout(view.slowTimer); return; }
  view.controller = new AbortController();
  readLatest();
  readQuality();
}

async function readLatest() {
  const { controller } = view;
  clearTimeout(view.timer);
  if (!controller) return;
  try {
    const { body } = await ask("latest", { limit: SHOWN }, controller.signal);
    take(body);
    put($("stream-none"), body.length || view.events.length ? "" : "There are no events in the log yet.");
  } catch (error) {
    if (controller.signal.aborted) return;
    put($("stream-none"), capitalized(error.message));
  }
  if (view.controller === controller) view.timer = setTimeout(readLatest, EVERY_MS);
}

function take(latest) {
  const known = new Set(view.events.map(keyOf));
  const fresh = latest.filter((event) => !known.has(keyOf(event)));
  if (view.isPaused) { view.waiting = fresh.length; showPause(); return; }
  view.waiting = 0;
  if (fresh.length) view.events = [...fresh, ...view.events].slice(0, SHOWN);
  showPause();
  rows($("stream-rows"), view.events, eventRow, (row, event) => fillEvent(row, event));
}

function showPause() {
  $("pause").setAttribute("aria-pressed", String(view.isPaused));
  put($("pause"), view.isPaused ? "Continue" : "Pause");
  const waiting = view.waiting === SHOWN ? `at least ${SHOWN} new events` : plural(view.waiting, "new event", "new events");
  const speed = snapshot()?.rate.last_minute;
  put($("stream-note"), view.isPaused ? `paused, ${waiting}` : `the newest ${SHOWN}, read every second${speed ? `; ${rate(speed)} arrive per second` : ""}`);
}

function eventRow() {
  const time = make("th", "when");
  time.scope = "row";
  const user = make("a", "uid");
  onPlainClick(user, () => change({ view: "users", user: user.uid, q: "" }));
  return make("tr", "", time, make("td", "", user), make("td", "number"), make("td", "values"), make("td", "place"));
}

function fillEvent(row, { uid, clicks, os, extra, reason, partition, offset, time_ms, timestamp_ms }) {
  const [time, user, clickCount, values, place] = row.children;
  row.classList.toggle("bad", reason !== null);
  put(time, zones.exactly(time_ms ?? timestamp_ms, zone()));
  user.firstElementChild.uid = uid;
  put(user.firstElementChild, uid === null ? "" : visible(uid));
  attribute(user.firstElementChild, "href", uid === null ? null : `?${new URLSearchParams({ view: "users", user: uid })}`);
  put(clickCount, clicks === null ? UNKNOWN : count(clicks));
  put(values, reason !== null ? `bad: ${visible(reason)}` : [os, valuesOf(extra)].filter(Boolean).map(visible).join(" · "));
  put(place, `${partition}:${offset}`);
}

// Late and bad events

async function readQuality() {
  const { controller } = view;
  if (!controller) return;
  await Promise.all([showQuality(controller.signal), showBad(controller.signal)]);
  if (view.controller === controller) view.slowTimer = setTimeout(readQuality, SLOWLY_MS);
}

async function showQuality(signal) {
  try {
    const { body } = await ask("quality", {}, signal);
    const text = (value) => (value === null ? UNKNOWN : count(value));
    pairs($("late-pairs"), [["Late", text(body.late)], ["Without a time", text(body.no_time)], ["In the future", text(body.future)], ["Bad", text(body.bad)]]);
    put($("late-none"), body.late === null ? "The job counts no time, so it has no late events." : "A late event belongs to a minute that retention has removed; it counts in longer buckets.");
  } catch (error) {
    if (!signal.aborted) put($("late-none"), capitalized(error.message));
  }
}

async function showBad(signal) {
  const request = ["bad/records", { limit: 20 }];
  try {
    const { body } = await ask(...request, signal);
    rows($("dead-rows"), body, badRow, fillBad);
    $("dead").hidden = body.length === 0;
    put($("dead-none"), body.length ? "" : "None: all events are valid.");
    exportLinks($("dead-exports"), body.length ? filesOf(...request, "onceflow-bad-events") : []);
  } catch (error) {
    if (!signal.aborted) put($("dead-none"), capitalized(error.message));
  }
}

function badRow() {
  const reason = make("th", "");
  reason.scope = "row";
  return make("tr", "", reason, make("td", "place"), make("td", "uid"));
}

function fillBad(row, { reason, partition, offset, value }) {
  const [why, place, text] = row.children;
  put(why, visible(reason));
  put(place, `${partition}:${offset}`);
  put(text, value === null ? "not in the log any more" : visible(value.slice(0, VALUE_LETTERS)));
}
