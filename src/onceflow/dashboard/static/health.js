// The drawer for the operator: lag and its trend, throughput, the last micro-batch and verification, services.

import { ask } from "./api.js";
import { $, make, put, rows } from "./dom.js";
import { lags, now_ms, snapshot } from "./live.js";
import { age, capitalized, clock, count, duration, plural } from "./words.js";

const EVERY_MS = 2_000;
const [WIDTH, HEIGHT] = [300, 48];
const UNKNOWN = "–";

let timer = null;

export function begin() {
  const drawer = $("health");
  $("pulse").addEventListener("click", () => { drawer.showModal(); refresh(); read(); });
  $("health-close").addEventListener("click", () => drawer.close());
  // A click beside the drawer closes it.
  drawer.addEventListener("click", (event) => { if (event.target === drawer) drawer.close(); });
  drawer.addEventListener("close", () => { clearTimeout(timer); timer = null; });
}

/** Called for each snapshot and every second. */
export function refresh() {
  const current = snapshot();
  if (!current || !$("health").open) return;
  showBatch(current);
  showTrend();
}

/** Draws the messages not counted yet, since the page was opened and at most ten minutes back. */
function showTrend() {
  const known = lags.filter(([, messages]) => messages !== null);
  const most = Math.max(1, ...known.map(([, messages]) => messages));
  const [first, last] = [lags[0][0], Math.max(lags.at(-1)[0], lags[0][0] + 1)];
  const points = known.map(([at, messages], index) => {
    const [x, y] = [((at - first) / (last - first)) * WIDTH, HEIGHT - 2 - (messages / most) * (HEIGHT - 4)];
    return `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  $("lag-trend").firstElementChild.setAttribute("d", points.join(""));
  const text = known.length ? `last ${age(last - first)}, at most ${plural(Math.max(...known.map(([, messages]) => messages)), "message", "messages")}` : "unknown";
  put($("lag-trend-note"), text);
  $("lag-trend").setAttribute("aria-label", `Trend of the lag: ${text}`);
}

function showBatch({ batch }) {
  put($("batch-number"), batch ? count(batch.number) : UNKNOWN);
  put($("batch-events"), batch && batch.events !== null ? count(batch.events) : UNKNOWN);
  put($("batch-duration"), batch && batch.duration_ms !== null ? duration(batch.duration_ms) : UNKNOWN);
  put($("batch-finished"), batch ? `${age(now_ms() - batch.finished_ms)} ago` : UNKNOWN);
  $("batch-finished").title = batch ? clock(batch.finished_ms) : "";
}

async function read() {
  try {
    const { body } = await ask("health", {});
    put($("verify"), verifyText(body.verify));
    showPlaces(body);
  } catch (error) {
    put($("verify"), capitalized(error.message));
  }
  if ($("health").open) timer = setTimeout(read, EVERY_MS);
}

function verifyText(verify) {
  if (!verify) return "No result is recorded. Check all counts with: onceflow verify --record";
  const result = verify.equal ? "Equal" : `Not equal in ${plural(verify.differences, "field", "fields")}`;
  return `${result}, up to micro-batch ${count(verify.batch)}, ${age(now_ms() - verify.finished_ms)} ago.`;
}

function showPlaces({ redis, broker, archive, links }) {
  const state = ({ state: name, since_ms }) => `${name}${since_ms === null ? "" : ` since ${clock(since_ms)}`}`;
  const behind = archive && archive.behind_messages !== null ? `, ${plural(archive.behind_messages, "message", "messages")} behind the log` : "";
  const places = [
    ["Redis", state(redis), null],
    ["Broker", state(broker), null],
    ["Archive", archive?.error ? archive.error : archive ? `${plural(archive.events, "event", "events")} in ${plural(archive.files, "file", "files")}${behind}` : "none", null],
    ...links.map(({ name, url }) => [name, url, /^https?:/.test(url) ? url : null]),
  ];
  rows($("places"), places, () => make("li", "", make("strong", ""), " ", make("span", "")), (item, [name, text, url]) => {
    put(item.firstElementChild, name);
    const old = item.lastElementChild;
    const isLink = old.tagName === "A";
    if (isLink !== Boolean(url)) old.replaceWith(make(url ? "a" : "span", ""));
    put(item.lastElementChild, text);
    if (url) Object.assign(item.lastElementChild, { href: url, rel: "noreferrer", target: "_blank" });
  });
}
