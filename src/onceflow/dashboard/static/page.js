// The page: each snapshot is written as text into existing elements, so that nothing flickers. Values from events (a
// uid, an operating system, a reason) are set as text and never as markup.

import { Feed } from "./feed.js";
import { RateChart } from "./chart.js";
import { age, capitalized, clock, count, duration, percent, plural, rate, visible } from "./words.js";

const $ = (id) => document.getElementById(id);
const OLD_MS = 3_000; // Live numbers are usually less than 1 s old.
const chart = new RateChart($("chart"), $("readout"));
const state = { snapshot: null, receivedAt: 0, connected: null, lostAt: 0, user: null };

/** Sets text only if it changed: the browser repaints nothing else, and a selection is kept. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

/** The server's time, advanced by the local monotonic clock: a wrong clock on this machine does not matter. */
function now_ms() {
  return state.snapshot.taken_ms + (performance.now() - state.receivedAt);
}

/** Gives a list one row per item: rows keep their position, and are added or removed at the end. */
function rows(list, items, build, fill) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  while (list.children.length < items.length) list.append(build());
  items.forEach((item, index) => fill(list.children[index], item, index));
}

// Counts

function showTotals({ totals, lag, rate: series, topic }) {
  const clicks = count(totals.clicks);
  put($("clicks"), clicks);
  $("clicks").style.setProperty("--digits", String(Math.max(clicks.length, 5)));
  put($("events"), count(totals.events));
  put($("events-note"), `in topic ${topic}`);
  put($("users"), count(totals.users));
  put($("rate"), series.last_minute === null ? "–" : rate(series.last_minute));
  document.title = `${clicks} clicks · Onceflow`;
  $("lag-fact").dataset.behind = String(Boolean(lag && lag.messages > 0));
}

function userRow() {
  return make("tr", "", make("td", "rank"), make("td", "uid"), make("td", "number"));
}

function fillUserRow(row, { uid, clicks }, index) {
  const [rank, name, number] = row.children;
  put(rank, String(index + 1));
  put(name, visible(uid));
  name.title = uid;
  put(number, count(clicks));
}

function bar() {
  const amount = make("span", "amount", make("b", ""), make("span", ""));
  return make("li", "", make("span", "name"), amount, make("div", "track", make("i", "")));
}

/** Fills a row of a bar list: its share of `whole` in percent, its length relative to the longest bar. */
function fillBar(row, name, value, whole, longest) {
  const [label, amount, track] = row.children;
  put(label, visible(name));
  label.title = name;
  put(amount.firstElementChild, count(value));
  put(amount.lastElementChild, percent(Number(value), whole));
  track.firstElementChild.style.setProperty("--share", String(longest > 0 ? Number(value) / longest : 0));
}

function showBars(list, items) {
  const values = items.map(([, value]) => Number(value));
  const whole = values.reduce((sum, value) => sum + value, 0);
  const longest = Math.max(0, ...values);
  rows(list, items, bar, (row, [name, value]) => fillBar(row, name, value, whole, longest));
}

function showTables({ top, os, bad, totals }) {
  rows($("top"), top, userRow, fillUserRow);
  $("top-none").hidden = top.length > 0;
  showBars($("os"), os.map(({ name, clicks }) => [name || "(none)", clicks]));
  showBars($("bad"), bad.map(({ reason, events }) => [reason, events]));
  $("bad-none").hidden = bad.length > 0;
  put($("bad-note"), bad.length ? `${count(totals.bad)} · list them with: onceflow dead` : "");
}

function showBatch({ batch }) {
  put($("batch-number"), batch ? count(batch.number) : "–");
  put($("batch-events"), batch && batch.events !== null ? count(batch.events) : "–");
  put($("batch-duration"), batch && batch.duration_ms !== null ? duration(batch.duration_ms) : "–");
  $("batch-finished").title = batch ? clock(batch.finished_ms) : "";
}

// Ages and problems, updated every second

function showAges() {
  const { batch, lag, services } = state.snapshot;
  put($("batch-finished"), batch ? `${age(now_ms() - batch.finished_ms)} ago` : "–");
  if (!lag || !lag.topic_exists) {
    put($("lag"), "–");
    put($("lag-note"), services.broker.state === "down" ? "broker is down" : lag ? "topic does not exist" : "");
  } else if (lag.messages === 0) {
    put($("lag"), "0 s");
    put($("lag-note"), "all messages counted");
  } else {
    put($("lag"), lag.oldest_ms === null ? "–" : duration(Math.max(0, now_ms() - lag.oldest_ms)));
    put($("lag-note"), `${plural(lag.messages, "message", "messages")} not counted yet`);
  }
}

/** Which events the numbers include, and how old that is. */
function showMoment() {
  const { now, batch, services } = state.snapshot;
  const old_ms = now.live ? Math.max(0, now_ms() - now.as_of_ms) : 0;
  const fresh = now.live && old_ms < OLD_MS && state.connected !== false;
  const waiting = now.not_counted > 0 ? `${plural(now.not_counted, "is", "are")} not in a micro-batch yet.` : "all are in a micro-batch.";
  // Banners already explain a service that is down.
  const explained = state.connected === false || services.redis.state === "down" || services.broker.state === "down";
  const why = now.reason && !explained ? capitalized(now.reason) : "";
  const counted = batch ? `Counted up to micro-batch ${count(batch.number)}.` : "Counted events only.";
  $("moment").dataset.state = fresh ? "now" : now.live ? "old" : "counted";
  put($("moment-title"), fresh ? `Now, ${duration(old_ms)} old.` : now.live ? `As of ${age(old_ms)} ago.` : counted);
  put($("moment-note"), now.live ? `Every event acknowledged until then; ${waiting} ${why}` : `Later events are not included. ${why}`);
}

/** All problems, worst first, as [kind, problem, explanation]. */
function problems() {
  if (state.connected === false) {
    return [["bad", "Connection to the server lost.", `The numbers are from ${clock(state.lostAt)}. Reconnecting…`]];
  }
  const list = [];
  const { services, bootstrap, counted, lag, topic, stopped_since_ms: stopped } = state.snapshot;
  if (services.redis.state === "down") {
    const { other_job: other } = services.redis;
    const problem = other ? "These are not the counts of onceflow run." : `Redis has been down since ${clock(services.redis.since_ms)}.`;
    const kept = counted ? "The numbers below are the last ones read." : other ? "" : "The counts appear when it is back.";
    list.push(["bad", problem, `${capitalized(services.redis.error)} ${kept}`]);
  }
  if (services.broker.state === "down") {
    list.push(["warn", `The broker has been down since ${clock(services.broker.since_ms)}.`, `${capitalized(services.broker.error)} The lag is unknown until it is back.`]);
  }
  if (services.broker.state === "up" && counted && lag && !lag.topic_exists) {
    list.push(["warn", `Topic ${topic} does not exist.`, `The broker at ${bootstrap} does not have it; select another topic with --topic.`]);
  }
  if (stopped !== null && services.redis.state !== "down") {
    const backlog = plural(lag.messages, "message is", "messages are");
    list.push(["warn", `No micro-batch for ${age(now_ms() - stopped)}.`, `The stream has stopped or is restarting; ${backlog} not counted yet. Resume with: onceflow run`]);
  }
  return list;
}

function showProblems() {
  const build = () => make("p", "banner", make("span", "", make("strong", ""), " ", make("span", "")));
  rows($("banners"), problems(), build, (banner, [kind, problem, explanation]) => {
    const className = `banner ${kind}`;
    if (banner.className !== className) banner.className = className;
    put(banner.querySelector("strong"), problem);
    put(banner.querySelector("span > span"), explanation);
  });
}

/** The worst problem in a few words; null if there is none. */
function worstProblem() {
  const { services, stopped_since_ms: stopped, counted, lag } = state.snapshot;
  if (state.connected === false) return ["bad", "Disconnected"];
  if (services.redis.state === "down") return ["bad", services.redis.other_job ? "Another job's counts" : "Redis is down"];
  if (services.broker.state === "down") return ["warn", "Broker is down"];
  if (stopped !== null) return ["warn", "Stopped or starting"];
  return counted && lag && !lag.topic_exists ? ["warn", "Topic does not exist"] : null;
}

function showPulse() {
  const { batch, counted, services } = state.snapshot;
  const worst = worstProblem();
  const live = batch ? `Micro-batch ${count(batch.number)}, ${age(now_ms() - batch.finished_ms)} ago` : "Waiting for the first micro-batch";
  put($("pulse-text"), worst ? worst[1] : live);
  put($("announcement"), worst ? worst[1] : "");
  document.body.dataset.pulse = worst ? worst[0] : counted ? "live" : "quiet";
  const stale = [];
  if (services.redis.state === "down" || state.connected === false) stale.push("counts");
  if (services.broker.state === "down" || state.connected === false) stale.push("lag");
  document.body.dataset.stale = stale.join(" ");
}

// Nothing counted yet: the commands to run

function showStart({ services, lag, topic, bootstrap, redis, hash_key }) {
  const unknown = services.redis.state === "down";
  $("steps").hidden = $("start-end").hidden = unknown;
  put($("start-title"), services.redis.other_job ? "Another job's counts" : unknown ? "Waiting for Redis" : "No counts yet");
  document.title = `${$("start-title").textContent} · Onceflow`;
  if (unknown) { put($("start-lead"), services.redis.other_job ? capitalized(services.redis.error) : "The counts appear here when Redis is up."); return; }
  const waiting = lag && lag.messages > 0 ? lag.messages : 0;
  put($("start-lead"), waiting
    ? `${plural(waiting, "event is", "events are")} in the log and not counted yet.`
    : "Run these two commands, or run onceflow demo, which starts everything.");
  $("step-events").dataset.done = String(waiting > 0);
  put($("step-events-note"), services.broker.state === "up"
    ? (waiting ? `${plural(waiting, "message", "messages")} in ${topic}.` : lag && lag.topic_exists ? `Topic ${topic} is empty.` : `The broker is up; topic ${topic} does not exist yet.`)
    : services.broker.state === "down" ? `No broker at ${bootstrap}; start one with: onceflow broker` : "");
  put($("command-events"), `onceflow generate --bootstrap ${bootstrap} --topic ${quoted(topic)}`);
  put($("command-count"), `onceflow run --bootstrap ${bootstrap} --topic ${quoted(topic)} --redis ${redis} --hash-key ${quoted(hash_key)}`);
}

const quoted = (text) => (/^[\w.:/@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// One user

async function findUser(uid) {
  const response = await fetch(`/api/user?uid=${encodeURIComponent(uid)}`);
  const body = await response.json();
  // The search may have changed in the meantime.
  if (state.user !== uid) return;
  $("found").hidden = false;
  put($("found-uid"), visible(uid));
  $("found-uid").title = uid;
  put($("found-clicks"), !response.ok ? body.error : body.clicks === null ? "no such user" : plural(body.clicks, "click", "clicks"));
}

function search() {
  const uid = $("uid").value.trim();
  state.user = uid || null;
  if (!uid) { $("found").hidden = true; return; }
  findUser(uid).catch(() => { /* The feed reports a lost server; the next snapshot repeats the search. */ });
}

function copy(button) {
  navigator.clipboard.writeText($(button.dataset.copy).textContent).then(
    () => { put(button, "Copied"); setTimeout(() => put(button, "Copy"), 1_500); },
    () => put(button, "Not copied"),
  );
}

// Update

function show(snapshot) {
  state.snapshot = snapshot;
  state.receivedAt = performance.now();
  put($("where"), snapshot.hash_key);
  $("where").title = snapshot.hash_key;
  put($("sources"), `Redis ${snapshot.redis} · broker ${snapshot.bootstrap}`);
  const view = snapshot.counted ? "numbers" : "start";
  if (document.body.dataset.view !== view) document.body.dataset.view = view;
  if (snapshot.counted) {
    showTotals(snapshot);
    showTables(snapshot);
    showBatch(snapshot);
    chart.show(snapshot.rate);
    if (state.user) search();
  } else {
    showStart(snapshot);
  }
  tick();
}

function tick() {
  if (!state.snapshot) return;
  if (state.snapshot.counted) { showAges(); showMoment(); }
  showProblems();
  showPulse();
}

function link(connected) {
  if (state.connected === connected) return;
  state.connected = connected;
  if (!connected) state.lostAt = Date.now();
  if (!connected && !state.snapshot) put($("pulse-text"), "Connecting to the server…");
  tick();
}

$("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
$("uid").addEventListener("input", () => { if (!$("uid").value.trim()) search(); });
for (const button of document.querySelectorAll(".copy")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", () => copy(button));
}
new Feed("/events", show, link);
setInterval(tick, 1_000);
