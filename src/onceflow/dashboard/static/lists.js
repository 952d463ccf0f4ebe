// Top lists: one for users and one for each dimension. A value is a button that filters everything else.

import { filesOf } from "./api.js";
import { $, attribute, button, make, onPlainClick, put, rows } from "./dom.js";
import { change, hasFilter, toggleFilter } from "./state.js";
import { capitalized, count, percent, visible } from "./words.js";

export const SHORT = 10;
export const LONG = 100;
const NAMES = { uid: "Top users", os: "By operating system" };
const panels = new Map();

/** Creates and removes panels so that there is one for each dimension, in this order. */
export function arrange(dimensions, onLength) {
  for (const [name, panel] of panels) {
    if (!dimensions.includes(name)) { panel.section.remove(); panels.delete(name); }
  }
  dimensions.forEach((name, index) => {
    if (!panels.has(name)) panels.set(name, createPanel(name, onLength));
    const { section } = panels.get(name);
    if ($("lists").children[index] !== section) $("lists").insertBefore(section, $("lists").children[index] ?? null);
  });
}

export const lengthOf = (dimension) => panels.get(dimension).length;

function createPanel(name, onLength) {
  const title = make("h2", "", NAMES[name] ?? `By ${visible(name)}`);
  const list = make("ol", "bars picks");
  const message = make("p", "quiet");
  const exports = make("span", "exports");
  const more = button("plain", "Show more");
  title.id = `list-title-${panels.size}-${Date.now()}`;
  message.setAttribute("role", "status");
  const section = make("section", "panel", make("div", "panel-head", title, make("p", "note", "clicks")), list, message, make("div", "under", more, exports));
  section.setAttribute("aria-labelledby", title.id);
  section.dataset.dimension = name;
  const panel = { section, list, message, exports, more, length: SHORT, kind: "" };
  more.addEventListener("click", () => {
    panel.length = panel.length === SHORT ? LONG : SHORT;
    put(more, panel.length === SHORT ? "Show more" : "Show fewer");
    onLength(name);
  });
  return panel;
}

/**
 * Shows values as [value, clicks]. `whole` is the number of which a value is a part, null if it is unknown; a value
 * filters if `filters` is true. `source` is where they come from, and `others` is the last row of a list that is longer, which is not a value.
 */
export function show(dimension, items, { whole = null, filters = false, others = null, file = null, source = null } = {}) {
  const panel = panels.get(dimension);
  attribute(panel.section, "data-source", source);
  const kind = dimension === "uid" ? "link" : filters ? "filter" : "text";
  if (panel.kind !== kind) { panel.list.replaceChildren(); panel.kind = kind; }
  const longest = Math.max(0, ...items.map(([, clicks]) => Number(clicks)), Number(others?.[1] ?? 0));
  const build = () => bar(dimension, kind);
  rows(panel.list, others ? [...items, others] : items, build, (row, [value, clicks], index) => {
    fill(row, { value, clicks, whole, longest, dimension, kind, isOthers: index === items.length });
  });
  put(panel.message, items.length ? "" : dimension === "uid" ? "No users in this range." : "No values in this range.");
  panel.more.hidden = !file || (items.length < panel.length && panel.length === SHORT);
  exportLinks(panel.exports, file ? filesOf(...file) : []);
}

export function fail(dimension, text) {
  const panel = panels.get(dimension);
  panel.list.replaceChildren();
  panel.more.hidden = true;
  put(panel.message, capitalized(text));
}

function bar(dimension, kind) {
  const content = [make("span", "name"), make("span", "amount", make("b", ""), make("span", "")), make("span", "track", make("i", ""))];
  const row = make("li", "");
  if (kind === "text") { row.append(make("div", "pick", ...content)); return row; }
  const pick = make(kind === "link" ? "a" : "button", "pick", ...content);
  if (kind === "filter") pick.type = "button";
  onPlainClick(pick, () => {
    if (pick.getAttribute("aria-disabled") === "true") return;
    if (kind === "link") change({ view: "users", user: row.chosen, q: "" }); else toggleFilter(dimension, row.chosen);
  });
  row.append(pick);
  return row;
}

function fill(row, { value, clicks, whole, longest, dimension, kind, isOthers }) {
  const [pick] = row.children;
  const [name, amount, track] = pick.children;
  row.chosen = value;
  const text = value === "" ? "(none)" : visible(value);
  put(name, text);
  name.title = value;
  name.classList.toggle("uid", kind === "link");
  put(amount.firstElementChild, count(clicks));
  put(amount.lastElementChild, whole === null ? "" : percent(Number(clicks), Number(whole)));
  track.firstElementChild.style.setProperty("--share", String(longest > 0 ? Number(clicks) / longest : 0));
  if (kind === "link") attribute(pick, "href", `?${new URLSearchParams({ view: "users", user: value })}`);
  if (kind !== "filter") return;
  attribute(pick, "aria-pressed", isOthers ? null : String(hasFilter(dimension, value)));
  attribute(pick, "aria-disabled", isOthers ? "true" : null);
}

export function exportLinks(element, files) {
  rows(element, files, () => make("a", ""), (link, [format, href, name]) => {
    put(link, format);
    attribute(link, "href", href);
    attribute(link, "download", name);
    attribute(link, "aria-label", `${format}: ${name}`);
  });
}

/** A plain list of bars: names with counts and shares. */
export function showBars(list, items) {
  const values = items.map(([, value]) => Number(value));
  const whole = values.reduce((sum, value) => sum + value, 0);
  const longest = Math.max(0, ...values);
  rows(list, items, () => bar("", "text"), (row, [value, clicks]) => fill(row, { value, clicks, whole, longest, kind: "text" }));
}
