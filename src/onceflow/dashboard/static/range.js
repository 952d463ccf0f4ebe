// The chosen range of time: its moments, its buckets and the filters that go with it. No requests, no elements.

import * as zones from "./zones.js";

export const RANGES = [["live", "Live"], ["today", "Today"], ["1h", "1 h"], ["24h", "24 h"], ["7d", "7 d"], ["30d", "30 d"], ["custom", "Custom"]];
const LENGTH_MS = { "1h": zones.HOUR_MS, "24h": zones.DAY_MS, "7d": 7 * zones.DAY_MS, "30d": 30 * zones.DAY_MS };
const USUAL_PER = { "1h": "minute", "24h": "hour", today: "hour", "7d": "hour", "30d": "day" };
const BUCKETS_MAX = 3_000; // The server's limit for one request.

/** Whether numbers over time can be asked for at all. */
export const canExplore = (capabilities) => Boolean(capabilities && (capabilities.over_time || capabilities.archive));

/**
 * Returns {range, per, from, to, where, isLive}. Relative ranges end after the newest event, so that a replayed history
 * has its own now; they are rounded out to whole buckets, so that the total equals the sum of the buckets.
 */
export function rangeOf(state, capabilities, newest_ms, zone) {
  const usual = canExplore(capabilities) ? "24h" : "live";
  const isFiltered = state.filters.length > 0;
  const range = !state.range || (state.range === "live" && isFiltered) ? (isFiltered ? "24h" : usual) : state.range;
  const where = state.filters.map(([dimension, value]) => `${dimension}=${value}`);
  if (range === "live") return { range, isLive: true, where };
  const [begin, end] = edges(range, state, newest_ms, zone);
  const per = perOf(range, state.per, end - begin);
  return { range, per, from: zones.startOf(per, begin, zone), to: zones.endOf(per, end, zone), where, isLive: false };
}

function edges(range, state, newest_ms, zone) {
  const end = zones.startOf("minute", newest_ms, zone) + zones.MINUTE_MS;
  if (range === "today") return [zones.startOf("day", newest_ms, zone), end];
  if (range !== "custom") return [end - LENGTH_MS[range], end];
  const [from, to] = [Number(state.from), Number(state.to)];
  return from < to ? [from, to] : [end - zones.DAY_MS, end];
}

function perOf(range, chosen, length_ms) {
  const usual = USUAL_PER[range] ?? (length_ms <= 3 * zones.HOUR_MS ? "minute" : length_ms <= 14 * zones.DAY_MS ? "hour" : "day");
  const wanted = range === "today" ? "hour" : chosen || usual;
  return isPossible(wanted, length_ms) ? wanted : ["hour", "day"].find((per) => isPossible(per, length_ms)) ?? "day";
}

export const isPossible = (per, length_ms) => length_ms / zones.WIDTH_MS[per] <= BUCKETS_MAX - 2;

/** Every bucket of a range, those without events with zeros: the server leaves them out. */
export function filled(rows, { from, to, per }, zone) {
  const byStart = new Map(rows.map((row) => [row.start_ms, row]));
  const points = [];
  for (let start_ms = from; start_ms < to && points.length < BUCKETS_MAX; start_ms = zones.next(per, start_ms, zone)) {
    const row = byStart.get(start_ms);
    points.push(row ?? { start_ms, end_ms: zones.next(per, start_ms, zone), events: 0, clicks: 0, users: 0, users_exact: true });
  }
  return points;
}
