// The page: each snapshot becomes text in elements that exist already, so that nothing flickers. Whatever comes from
// events (a uid, an operating system, a reason) is set as text and never as markup.

import { Feed } from "./feed.js";
import { RateChart } from "./chart.js";
import { age, clock, count, duration, percent, plural, rate, sentence, visible } from "./words.js";

const $ = (id) => document.getElementById(id);
const chart = new RateChart($("chart"), $("readout"));
const state = { snapshot: null, receivedAt: 0, connected: null, lostAt: 0, user: null };

/** Sets text only where it changed: the browser then repaints nothing else, and a selection survives. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

/** The server's clock, carried on by ours, so that a wrong clock on this machine does no harm. */
function now_ms() {
  return state.snapshot.taken_ms + (performance.now() - state.receivedAt);
}

/** Brings a list to one row per item: rows are kept by position and filled, made or taken away at the end. */
function rows(list, items, build, fill) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  while (list.children.length < items.length) list.append(build());
  items.forEach((item, index) => fill(list.children[index], item, index));
}

// What the numbers say

function showTotals({ totals, lag, rate: series, topic }) {
  const clicks = count(totals.clicks);
  put($("clicks"), clicks);
  $("clicks").style.setProperty("--digits", String(Math.max(clicks.length, 5)));
  put($("events"), count(totals.events));
  put($("events-note"), `of the topic ${topic}`);
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

/** A row of a bar list: its share of `whole` as a percentage, its length against the longest bar. */
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
  put($("bad-note"), bad.length ? `${count(totals.bad)} · onceflow dead shows them` : "");
}

function showBatch({ batch }) {
  put($("batch-number"), batch ? count(batch.number) : "–");
  put($("batch-events"), batch && batch.events !== null ? count(batch.events) : "–");
  put($("batch-duration"), batch && batch.duration_ms !== null ? duration(batch.duration_ms) : "–");
  $("batch-finished").title = batch ? clock(batch.finished_ms) : "";
}

// What changes with the seconds

function showAges() {
  const { batch, lag, services } = state.snapshot;
  put($("batch-finished"), batch ? `${age(now_ms() - batch.finished_ms)} ago` : "–");
  if (!lag || !lag.topic_exists) {
    put($("lag"), "–");
    put($("lag-note"), services.broker.state === "down" ? "broker is down" : lag ? "the topic is not there" : "");
  } else if (lag.messages === 0) {
    put($("lag"), "0 s");
    put($("lag-note"), "everything is counted");
  } else {
    put($("lag"), lag.oldest_ms === null ? "–" : duration(Math.max(0, now_ms() - lag.oldest_ms)));
    put($("lag-note"), `${plural(lag.messages, "message waits", "messages wait")}`);
  }
}

/** Every trouble there is, worst first, as [kind, what, what it means]. */
function troubles() {
  if (state.connected === false) {
    return [["bad", "This page lost its server.", `These are its last numbers, from ${clock(state.lostAt)}. It tries again by itself.`]];
  }
  const found = [];
  const { services, bootstrap, counted, lag, topic, stopped_since_ms: stopped } = state.snapshot;
  if (services.redis.state === "down") {
    const { other_job: other } = services.redis;
    const what = other ? "These are not the counts of onceflow run" : "Redis is down";
    const kept = counted ? "The numbers below are the last ones read." : other ? "" : "Counts appear when it is back.";
    found.push(["bad", `${what}, seen since ${clock(services.redis.since_ms)}.`, `${sentence(services.redis.error)} ${kept}`]);
  }
  if (services.broker.state === "down") {
    found.push(["warn", `The broker is down, seen since ${clock(services.broker.since_ms)}.`, `${sentence(services.broker.error)} Lag is unknown until it is back.`]);
  }
  if (services.broker.state === "up" && counted && lag && !lag.topic_exists) {
    found.push(["warn", `Topic ${topic} is not there.`, `The broker at ${bootstrap} has no such topic; start with --topic to name another.`]);
  }
  if (stopped !== null && services.redis.state !== "down") {
    const waiting = plural(lag.messages, "message waits", "messages wait");
    found.push(["warn", `No micro-batch for ${age(now_ms() - stopped)}.`, `The stream has stopped or is starting again, and ${waiting} to be counted; onceflow run goes on with them.`]);
  }
  return found;
}

function showTroubles() {
  const found = troubles();
  const build = () => make("p", "banner", make("span", "", make("strong", ""), " ", make("span", "")));
  rows($("banners"), found, build, (banner, [kind, what, meaning]) => {
    const className = `banner ${kind}`;
    if (banner.className !== className) banner.className = className;
    put(banner.querySelector("strong"), what);
    put(banner.querySelector("span > span"), meaning);
  });
}

/** The worst trouble in two words, null if all is well. */
function worstTrouble() {
  const { services, stopped_since_ms: stopped, counted, lag } = state.snapshot;
  if (state.connected === false) return ["bad", "Disconnected"];
  if (services.redis.state === "down") return ["bad", services.redis.other_job ? "Another job's counts" : "Redis is down"];
  if (services.broker.state === "down") return ["warn", "Broker is down"];
  if (stopped !== null) return ["warn", "Stopped or starting"];
  return counted && lag && !lag.topic_exists ? ["warn", "No topic"] : null;
}

function showPulse() {
  const { batch, counted, services } = state.snapshot;
  const worst = worstTrouble();
  const live = batch ? `Micro-batch ${count(batch.number)}, ${age(now_ms() - batch.finished_ms)} ago` : "Waiting for the first micro-batch";
  put($("pulse-text"), worst ? worst[1] : live);
  put($("announcement"), worst ? worst[1] : "");
  document.body.dataset.pulse = worst ? worst[0] : counted ? "live" : "quiet";
  const stale = [];
  if (services.redis.state === "down" || state.connected === false) stale.push("counts");
  if (services.broker.state === "down" || state.connected === false) stale.push("lag");
  document.body.dataset.stale = stale.join(" ");
}

// Nothing counted yet: what to type

function showStart({ services, lag, topic, bootstrap, redis, hash_key }) {
  const unknown = services.redis.state === "down";
  $("steps").hidden = $("start-end").hidden = unknown;
  put($("start-title"), services.redis.other_job ? "Another job's counts" : unknown ? "Waiting for Redis" : "Nothing counted yet");
  document.title = `${$("start-title").textContent} · Onceflow`;
  if (unknown) { put($("start-lead"), services.redis.other_job ? sentence(services.redis.error) : "The counts appear here as soon as it answers."); return; }
  const waiting = lag && lag.messages > 0 ? lag.messages : 0;
  put($("start-lead"), waiting
    ? `${plural(waiting, "event is", "events are")} in the log, and none of them is counted yet.`
    : "Two commands away from live numbers; onceflow demo does all of it at once.");
  $("step-events").dataset.done = String(waiting > 0);
  put($("step-events-note"), services.broker.state === "up"
    ? (waiting ? `${plural(waiting, "message", "messages")} in ${topic}.` : lag && lag.topic_exists ? `The topic ${topic} is empty.` : `The broker is up; the topic ${topic} is not there yet.`)
    : services.broker.state === "down" ? `No broker answers at ${bootstrap}: onceflow broker starts one.` : "");
  put($("command-events"), `onceflow generate --bootstrap ${bootstrap} --topic ${quoted(topic)}`);
  put($("command-count"), `onceflow run --bootstrap ${bootstrap} --topic ${quoted(topic)} --redis ${redis} --hash-key ${quoted(hash_key)}`);
}

const quoted = (text) => (/^[\w.:/@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// One user

async function findUser(uid) {
  const answer = await fetch(`/api/user?uid=${encodeURIComponent(uid)}`);
  const body = await answer.json();
  // Another may have been searched for, or none, while it was on its way.
  if (state.user !== uid) return;
  $("found").hidden = false;
  put($("found-uid"), visible(uid));
  $("found-uid").title = uid;
  put($("found-clicks"), !answer.ok ? body.error : body.clicks === null ? "no such user" : plural(body.clicks, "click", "clicks"));
}

function search() {
  const uid = $("uid").value.trim();
  state.user = uid || null;
  if (!uid) { $("found").hidden = true; return; }
  findUser(uid).catch(() => { /* The feed tells that the server is lost; the next snapshot asks again. */ });
}

function copy(button) {
  navigator.clipboard.writeText($(button.dataset.copy).textContent).then(
    () => { put(button, "Copied"); setTimeout(() => put(button, "Copy"), 1_500); },
    () => put(button, "Select it"),
  );
}

// All together

function show(snapshot) {
  state.snapshot = snapshot;
  state.receivedAt = performance.now();
  put($("where"), snapshot.hash_key);
  $("where").title = snapshot.hash_key;
  put($("sources"), `Counts from ${snapshot.redis}, lag from ${snapshot.bootstrap}`);
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
  if (state.snapshot.counted) showAges();
  showTroubles();
  showPulse();
}

function link(connected) {
  if (state.connected === connected) return;
  state.connected = connected;
  if (!connected) state.lostAt = Date.now();
  if (!connected && !state.snapshot) put($("pulse-text"), "The server does not answer yet…");
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
