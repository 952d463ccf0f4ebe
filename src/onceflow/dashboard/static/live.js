// The live snapshot: totals that are exact now, the first steps while nothing is counted, and problems.

import { $, make, put, rows } from "./dom.js";
import { age, capitalized, clock, count, duration, plural, rate } from "./words.js";

const OLD_MS = 3_000; // Live numbers are usually less than 1 s old.
const TREND_MS = 600_000;
const live = { snapshot: null, receivedAt: 0, connected: null, lostAt: 0 };

/** Lags of the last ten minutes as [ms, messages or null], at most one a second. */
export const lags = [];

export const snapshot = () => live.snapshot;

/** The server's time, advanced by the local monotonic clock: a wrong clock on this machine does not matter. */
export function now_ms() {
  return live.snapshot ? live.snapshot.taken_ms + (performance.now() - live.receivedAt) : Date.now();
}

export function receive(snapshot) {
  live.snapshot = snapshot;
  live.receivedAt = performance.now();
  put($("where"), snapshot.hash_key);
  $("where").title = snapshot.hash_key;
  put($("sources"), `Redis ${snapshot.redis} · broker ${snapshot.bootstrap}`);
  const view = snapshot.counted ? "numbers" : "start";
  if (document.body.dataset.view !== view) document.body.dataset.view = view;
  if (snapshot.counted) showTotals(snapshot);
  else showStart(snapshot);
  keepLag(snapshot);
  tick();
}

export function link(connected) {
  if (live.connected === connected) return;
  live.connected = connected;
  if (!connected) live.lostAt = Date.now();
  if (!connected && !live.snapshot) put($("pulse-text"), "Connecting to the server…");
  tick();
}

/** Updates ages and problems; called every second. */
export function tick() {
  if (!live.snapshot) return;
  if (live.snapshot.counted) { showMoment(); showLag(live.snapshot); }
  showProblems();
  showPulse();
}

function keepLag({ lag, taken_ms: at }) {
  if (lags.length && at - lags.at(-1)[0] < 1_000) return;
  lags.push([at, lag ? lag.messages : null]);
  while (lags[0][0] < at - TREND_MS) lags.shift();
}

/** Shows a text wherever the page has this number. */
function fill(name, text) {
  for (const element of document.querySelectorAll(`[data-live="${name}"]`)) put(element, text);
}

function showLag({ lag, services, rate: series }) {
  fill("rate", series.last_minute === null ? "–" : rate(series.last_minute));
  const [text, note] = lagText(lag, services.broker);
  fill("lag", text);
  fill("lag-note", note);
  for (const element of document.querySelectorAll('[data-live="lag"]')) element.dataset.behind = String(Boolean(lag && lag.messages > 0));
}

function lagText(lag, broker) {
  if (!lag || !lag.topic_exists) return ["–", broker.state === "down" ? "broker is down" : lag ? "topic does not exist" : ""];
  if (lag.messages === 0) return ["0 s", "all messages counted"];
  const waiting = `${plural(lag.messages, "message", "messages")} not counted yet`;
  return [lag.oldest_ms === null ? "–" : duration(Math.max(0, now_ms() - lag.oldest_ms)), waiting];
}

function showTotals({ totals, topic }) {
  const clicks = count(totals.clicks);
  put($("clicks"), clicks);
  $("clicks").style.setProperty("--digits", String(Math.max(clicks.length, 5)));
  put($("events"), count(totals.events));
  put($("events-note"), `in topic ${topic}`);
  put($("users"), count(totals.users));
  document.title = `${clicks} clicks · Onceflow`;
}

/** Which events the numbers include, and how old that is. */
function showMoment() {
  const { now, batch, services } = live.snapshot;
  const old_ms = now.live ? Math.max(0, now_ms() - now.as_of_ms) : 0;
  const fresh = now.live && old_ms < OLD_MS && live.connected !== false;
  const waiting = now.not_counted > 0 ? `${plural(now.not_counted, "is", "are")} not in a micro-batch yet.` : "all are in a micro-batch.";
  // Banners already explain a service that is down.
  const explained = live.connected === false || services.redis.state === "down" || services.broker.state === "down";
  const why = now.reason && !explained ? capitalized(now.reason) : "";
  const counted = batch ? `Counted up to micro-batch ${count(batch.number)}.` : "Counted events only.";
  $("moment").dataset.state = fresh ? "now" : now.live ? "old" : "counted";
  put($("moment-title"), fresh ? `Now, ${duration(old_ms)} old.` : now.live ? `As of ${age(old_ms)} ago.` : counted);
  put($("moment-note"), now.live ? `Every event acknowledged until then; ${waiting} ${why}` : `Later events are not included. ${why}`);
}

/** All problems, worst first, as [kind, problem, explanation]. */
function problems() {
  if (live.connected === false) {
    return [["bad", "Connection to the server lost.", `The numbers are from ${clock(live.lostAt)}. Reconnecting…`]];
  }
  const list = [];
  const { services, bootstrap, counted, lag, topic, stopped_since_ms: stopped } = live.snapshot;
  if (services.redis.state === "down") {
    const { other_job: other } = services.redis;
    const problem = other ? "These are not the counts of onceflow run." : `Redis has been down since ${clock(services.redis.since_ms)}.`;
    const kept = counted ? "The live numbers are the last ones read." : other ? "" : "The counts appear when it is back.";
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
    list.push(["warn", `No micro-batch for ${age(now_ms() - stopped)}.`, `The query has stopped or is restarting; ${backlog} not counted yet. If it has ended, start it again with the same options.`]);
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
  const { services, stopped_since_ms: stopped, counted, lag } = live.snapshot;
  if (live.connected === false) return ["bad", "Disconnected"];
  if (services.redis.state === "down") return ["bad", services.redis.other_job ? "Another job's counts" : "Redis is down"];
  if (services.broker.state === "down") return ["warn", "Broker is down"];
  if (stopped !== null) return ["warn", "Stopped or starting"];
  return counted && lag && !lag.topic_exists ? ["warn", "Topic does not exist"] : null;
}

function showPulse() {
  const { batch, counted, services } = live.snapshot;
  const worst = worstProblem();
  const usual = batch ? `Micro-batch ${count(batch.number)}, ${age(now_ms() - batch.finished_ms)} ago` : "Waiting for the first micro-batch";
  put($("pulse-text"), worst ? worst[1] : usual);
  put($("announcement"), worst ? worst[1] : "");
  document.body.dataset.pulse = worst ? worst[0] : counted ? "live" : "quiet";
  const stale = [];
  if (services.redis.state === "down" || live.connected === false) stale.push("counts");
  if (services.broker.state === "down" || live.connected === false) stale.push("lag");
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
