// The page: connects the live feed, the address and the views.

import { ask, pause } from "./api.js";
import { $, attribute, onPlainClick, put } from "./dom.js";
import * as explore from "./explore.js";
import { Feed } from "./feed.js";
import * as health from "./health.js";
import * as lists from "./lists.js";
import * as live from "./live.js";
import * as people from "./people.js";
import { addressOf, change, onChange, state } from "./state.js";
import * as stream from "./stream.js";
import { count } from "./words.js";

const CAPABILITIES_MS = 15_000; // An archive or a job's first micro-batch may appear later.
const RETRY_MS = 2_000;

function showView() {
  const { view } = state();
  document.body.dataset.page = view;
  for (const link of $("views").children) {
    const name = link.dataset.page;
    attribute(link, "aria-current", name === view ? "page" : null);
    attribute(link, "href", addressOf({ ...state(), view: name, user: "", q: "" }));
  }
  explore.load();
  people.load();
  stream.load();
}


function receive(snapshot) {
  const before = live.snapshot();
  const isNews = before && (before.counted !== snapshot.counted || before.services.redis.state !== snapshot.services.redis.state);
  live.receive(snapshot);
  if (isNews) readCapabilities().catch(() => {}); // It is asked for again soon.
  if (!snapshot.counted) return;
  showBad(snapshot);
  explore.refresh();
  people.refresh();
  health.refresh();
}

function showBad({ bad, totals }) {
  lists.showBars($("bad"), bad.map(({ reason, events }) => [reason, events]));
  $("bad-none").hidden = bad.length > 0;
  put($("bad-note"), bad.length ? `${count(totals.bad)} · list them with: onceflow dead` : "");
}

function tick() {
  live.tick();
  explore.refresh();
  health.refresh();
}

let known = "";
let measured = null;

async function readCapabilities() {
  setCapabilities((await ask("capabilities", {})).body);
}

function setCapabilities(capabilities) {
  // While Redis is away, the job still counts what it counted before.
  const { over_time, sessions, dimensions, newest_ms } = capabilities;
  if (over_time !== null) measured = { over_time, sessions, dimensions, newest_ms };
  else Object.assign(capabilities, measured);
  const text = JSON.stringify({ ...capabilities, newest_ms: null, kept_from_ms: null });
  if (text === known) return;
  known = text;
  $("logout").hidden = capabilities.login !== "token";
  explore.setCapabilities(capabilities);
  people.setCapabilities(capabilities);
}

/** Only the snapshot's numbers, with the reason. */
const liveOnly = (reason) => ({
  login: "none", over_time: false, sessions: false, dimensions: [], newest_ms: null, archive: false, timeline: false, filters: false,
  unavailable: [{ what: "over_time", reason }],
});

async function keepCapabilities() {
  for (;;) {
    try {
      await readCapabilities();
      await pause(CAPABILITIES_MS);
    } catch (error) {
      if (!known) setCapabilities(liveOnly(error.message));
      await pause(RETRY_MS);
    }
  }
}

function copy(button) {
  navigator.clipboard.writeText($(button.dataset.copy).textContent).then(
    () => { put(button, "Copied"); setTimeout(() => put(button, "Copy"), 1_500); },
    () => put(button, "Not copied"),
  );
}

for (const button of document.querySelectorAll(".copy")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", () => copy(button));
}
explore.begin();
people.begin();
stream.begin();
health.begin();
for (const link of $("views").children) onPlainClick(link, () => change({ view: link.dataset.page, user: "", q: "" }));
onChange(showView);
showView();
keepCapabilities();
new Feed("/events", receive, live.link);
setInterval(tick, 1_000);
