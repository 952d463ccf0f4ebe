// Users: the most active ones, a search, and one user's sessions and events.

import { ask, filesOf, follow, pause } from "./api.js";
import { $, attribute, make, onPlainClick, pairs, put, rows } from "./dom.js";
import { exportLinks } from "./lists.js";
import { change, state, zone } from "./state.js";
import * as zones from "./zones.js";
import { capitalized, count, duration, plural, valuesOf, visible } from "./words.js";

const TYPING_MS = 250;
const AGAIN_MS = 1_000;
const PAGES_MAX = 10; // One request scans 100,000 users.
const LIST_MAX = 20;
const TIMELINE_MAX = 50;
const EXPORTED_MAX = 1_000;
const UNKNOWN = "–";

const view = { capabilities: null, search: null, user: null, shownSearch: null, shownUser: null, events: [], next: null, askedAt: 0 };

export function begin() {
  $("search").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("uid").addEventListener("input", typed);
  $("timeline-more").addEventListener("click", moreEvents);
}

export function setCapabilities(capabilities) {
  view.capabilities = capabilities;
  load();
}

/** Called when the address changed. */
export function load() {
  if (state().view !== "users") { stop(); return; }
  if (document.activeElement !== $("uid")) $("uid").value = state().q;
  if (!view.capabilities) return;
  if (view.shownSearch !== state().q) loadUsers();
  if (view.shownUser !== state().user) loadUser();
}

function stop() {
  view.search?.abort();
  view.user?.abort();
  view.shownSearch = view.shownUser = null;
}

async function typed() {
  const text = $("uid").value;
  await pause(TYPING_MS);
  if ($("uid").value === text) change({ q: text.trim() }, { replaces: true });
}

/** Opens the user with exactly this uid; otherwise the list has those that contain it. */
async function submit() {
  const uid = $("uid").value.trim();
  if (!uid) { change({ q: "", user: "" }); return; }
  try {
    await ask("user", { uid });
    change({ q: uid, user: uid });
  } catch {
    change({ q: uid });
  }
}

// The list

async function loadUsers() {
  view.search?.abort();
  const controller = new AbortController();
  const { signal } = controller;
  view.search = controller;
  view.shownSearch = state().q;
  const search = state().q;
  put($("found-title"), search ? "Users found" : "Top users");
  put($("found-note"), search ? "in no order" : "all time");
  put($("found-none"), "Searching…");
  const request = ["users", { search, limit: LIST_MAX }];
  exportLinks($("found-exports"), filesOf(...request, "onceflow-users"));
  try {
    let page = await ask(...request, signal);
    const users = [...page.body];
    for (let pages = 1; users.length < LIST_MAX && page.next && search && pages < PAGES_MAX; pages += 1) {
      showUsers(users);
      page = await follow(page.next, signal);
      users.push(...page.body);
    }
    showUsers(users);
    put($("found-none"), users.length ? (search && page.next ? "There are more users; type more of the uid." : "") : search ? `No user's uid contains ${visible(search)}.` : "No users yet.");
  } catch (error) {
    if (signal.aborted) return;
    showUsers([]);
    put($("found-none"), capitalized(error.message));
  }
}

function showUsers(users) {
  rows($("found"), users, userRow, (row, { uid, clicks }) => {
    const [link] = row.children;
    row.uid = uid;
    attribute(link, "href", `?${new URLSearchParams({ view: "users", user: uid })}`);
    attribute(link, "aria-current", uid === state().user ? "true" : null);
    put(link.firstElementChild, visible(uid));
    link.firstElementChild.title = uid;
    put(link.lastElementChild, count(clicks));
  });
}

function userRow() {
  const link = make("a", "pick", make("span", "name uid"), make("span", "amount"));
  const row = make("li", "", link);
  onPlainClick(link, () => {
    change({ user: row.uid });
    $("user-title").focus();
  });
  return row;
}

// One user

async function loadUser() {
  view.user?.abort();
  const controller = new AbortController();
  const { signal } = controller;
  view.user = controller;
  const uid = view.shownUser = state().user;
  for (const { firstElementChild: link } of $("found").children) attribute(link, "aria-current", link.parentElement.uid === uid ? "true" : null);
  $("user").hidden = !uid;
  if (!uid) return;
  put($("user-title"), visible(uid));
  $("user-title").title = uid;
  put($("user-none"), "");
  $("user-body").hidden = true;
  try {
    const { body } = await ask("user", { uid }, signal);
    showUser(body);
  } catch (error) {
    if (!signal.aborted) put($("user-none"), error.code === "no-user" ? "There is no such user." : capitalized(error.message));
    return;
  }
  $("user-body").hidden = false;
  await Promise.all([loadSessions(uid, signal), loadTimeline(uid, signal)]);
}

/** Called for each snapshot: keeps the shown user's clicks current. */
export async function refresh() {
  const uid = view.shownUser;
  if (!uid || document.hidden || $("user-body").hidden || performance.now() - view.askedAt < AGAIN_MS) return;
  view.askedAt = performance.now();
  try {
    const { body } = await ask("user", { uid }, view.user.signal);
    showUser(body);
  } catch {
    // The feed reports a lost server; the next snapshot asks again.
  }
}

function showUser({ clicks, live, active, last_ms, sessions }) {
  const moment = (at_ms) => (at_ms === null ? UNKNOWN : zones.dateTime(at_ms, zone()));
  pairs($("user-pairs"), [
    [live ? "Clicks now" : "Clicks counted", count(clicks)],
    ["Sessions", sessions === null ? UNKNOWN : count(sessions)],
    ["Last seen", `${moment(last_ms)}${active ? ", active" : ""}`],
  ]);
}

async function loadSessions(uid, signal) {
  const request = ["sessions", { uid, limit: LIST_MAX }];
  const refuse = (text) => { put($("user-sessions-none"), text); rows($("user-sessions-rows"), [], null, null); $("user-sessions").hidden = true; };
  exportLinks($("user-exports"), view.capabilities.sessions ? filesOf(...request, "onceflow-sessions") : []);
  if (!view.capabilities.sessions) { refuse(reasonOf("sessions") ?? "The job counts no sessions."); return; }
  try {
    const { body } = await ask(...request, signal);
    put($("user-sessions-none"), body.length ? "" : "No session is kept.");
    $("user-sessions").hidden = body.length === 0;
    rows($("user-sessions-rows"), body, sessionRow, fillSession);
  } catch (error) {
    if (!signal.aborted) refuse(capitalized(error.message));
  }
}

function sessionRow() {
  const started = make("th", "");
  started.scope = "row";
  return make("tr", "", started, ...["length", "events", "clicks"].map(() => make("td", "number")));
}

function fillSession(row, { started_ms, ended_ms, events, clicks }) {
  const [started, length, eventCount, clickCount] = row.children;
  put(started, zones.exactly(started_ms, zone()));
  put(length, duration(ended_ms - started_ms));
  put(eventCount, count(events));
  put(clickCount, count(clicks));
}

/** The reason for which something cannot be asked for; null if it can. */
function reasonOf(what) {
  const limit = view.capabilities.unavailable.find((one) => one.what === what);
  return limit ? capitalized(limit.reason) : null;
}

// Timeline

async function loadTimeline(uid, signal) {
  view.events = [];
  view.next = null;
  showTimeline();
  exportLinks($("timeline-exports"), view.capabilities.timeline ? filesOf("timeline", { uid, limit: EXPORTED_MAX }, "onceflow-timeline") : []);
  if (!view.capabilities.timeline) { put($("timeline-none"), reasonOf("timeline") ?? "There is no archive to read it from."); return; }
  put($("timeline-none"), "Reading the archive…");
  await addEvents(() => ask("timeline", { uid, limit: TIMELINE_MAX }, signal), signal);
}

async function moreEvents() {
  const { signal } = view.user;
  await addEvents(() => follow(view.next, signal), signal);
}

async function addEvents(request, signal) {
  try {
    const { body, next } = await request();
    view.events.push(...body);
    view.next = next;
    put($("timeline-none"), view.events.length ? "" : "The archive has no event of this user.");
    showTimeline();
  } catch (error) {
    if (!signal.aborted) put($("timeline-none"), capitalized(error.message));
  }
}

function showTimeline() {
  rows($("timeline"), view.events, () => make("li", "", make("span", "when"), make("span", "what"), make("span", "values")), (row, event) => {
    const [when, what, values] = row.children;
    put(when, zones.exactly(event.time_ms, zone()));
    put(what, plural(event.clicks, "click", "clicks"));
    put(values, [event.os, valuesOf(event.extra), event.no_time ? "without a time of its own" : "", event.future ? "time in the future" : ""].filter(Boolean).map(visible).join(" · "));
  });
  $("timeline-more").hidden = !view.next;
}
