// Choices of the overview: range, buckets, number, chart, time zone, and the filters in force.

import { $, button, make, put, rows } from "./dom.js";
import { canExplore, isPossible, RANGES } from "./range.js";
import { change, state, toggleFilter, zone } from "./state.js";
import * as zones from "./zones.js";
import { capitalized, visible } from "./words.js";

const METRICS = [["events", "Events"], ["clicks", "Clicks"], ["users", "Users"]];
const LIMITED = { over_time: "Numbers over time", sessions: "Sessions", filters: "Filters" };

/** Adds radio buttons to a fieldset; arrow keys move between them. */
function radios(fieldset, name, choices, onChoice) {
  for (const [value, text] of choices) {
    const input = make("input", "");
    Object.assign(input, { type: "radio", name, value });
    input.addEventListener("change", () => onChoice(value));
    fieldset.append(make("label", "", input, make("span", "name", text)));
  }
}

const inputOf = (name, value) => document.querySelector(`input[name="${name}"][value="${value}"]`);

export function begin() {
  radios($("range"), "range", RANGES, chooseRange);
  radios($("per"), "per", [["minute", "Minute"], ["hour", "Hour"], ["day", "Day"]], (per) => change({ per }));
  radios($("kind"), "kind", [["bars", "Bars"], ["line", "Line"]], (chart) => change({ chart }));
  radios($("metric"), "metric", METRICS, (metric) => change({ metric }));
  for (const label of $("metric").querySelectorAll("label")) label.append(make("span", "amount", "–"));
  $("zone").append(...[zone(), ...zones.names().filter((name) => name !== zone())].map((name) => new Option(name, name)));
  $("zone").addEventListener("change", () => change({ zone: $("zone").value }));
  $("clear").addEventListener("click", () => { change({ filters: [] }); $("range").querySelector("input:checked")?.focus(); });
  $("custom").addEventListener("submit", (event) => { event.preventDefault(); applyCustom(); });
}

let shownRange = null;

function chooseRange(range) {
  if (range !== "custom") { change({ range, from: "", to: "", ...(range === "live" && { filters: [] }) }); return; }
  const { from, to } = shownRange?.isLive === false ? shownRange : { from: Date.now() - zones.DAY_MS, to: Date.now() };
  change({ range, from: String(from), to: String(to), per: "" });
}

function applyCustom() {
  const [from, to] = [zones.fromField($("from").value, zone()), zones.fromField($("to").value, zone())];
  const isWrong = from === null || to === null || from >= to;
  put($("custom-wrong"), isWrong ? "The end must be after the start." : "");
  if (!isWrong) change({ range: "custom", from: String(from), to: String(to) });
}

/** Shows the choices in force for a range as `rangeOf` returns it. */
export function show(range, capabilities) {
  shownRange = range;
  const explores = canExplore(capabilities);
  for (const [name] of RANGES) {
    const input = inputOf("range", name);
    input.checked = name === range.range;
  }
  showZone();
  $("range-bar").hidden = !explores;
  $("custom").hidden = range.range !== "custom";
  if (range.range === "custom" && !$("custom").contains(document.activeElement)) {
    $("from").value = zones.toField(range.from, zone());
    $("to").value = zones.toField(range.to, zone());
    put($("custom-wrong"), "");
  }
  $("measured").hidden = $("under").hidden = range.isLive;
  if (!range.isLive) showBuckets(range);
  showFilters();
  showLimits(capabilities);
}

/** Chooses the zone in the list; a name that this browser does not list is added. */
function showZone() {
  if (![...$("zone").options].some(({ value }) => value === zone())) $("zone").add(new Option(zone(), zone()));
  $("zone").value = zone();
}

function showBuckets(range) {
  for (const per of Object.keys(zones.WIDTH_MS)) {
    const input = inputOf("per", per);
    input.checked = per === range.per;
    input.parentElement.hidden = range.range === "today" ? per !== "hour" : !isPossible(per, range.to - range.from);
  }
  inputOf("kind", state().chart).checked = true;
  inputOf("metric", state().metric).checked = true;
}

export function showMetric(name, text) {
  put(inputOf("metric", name).parentElement.querySelector(".amount"), text);
}

function showFilters() {
  const { filters } = state();
  $("filter-bar").hidden = filters.length === 0;
  rows($("filters"), filters, chip, (item, [dimension, value]) => {
    item.filter = [dimension, value];
    put(item.querySelector(".dimension"), dimension);
    put(item.querySelector(".name"), visible(value));
    item.querySelector("button").setAttribute("aria-label", `Remove filter ${dimension} ${visible(value)}`);
  });
}

function chip() {
  const item = make("li", "chip", make("span", "dimension"), " is ", make("strong", "name"));
  item.append(button("", "×", () => { toggleFilter(...item.filter); ($("filters").querySelector("button") ?? $("range").querySelector("input:checked"))?.focus(); }));
  return item;
}

function showLimits(capabilities) {
  const limits = (capabilities?.unavailable ?? []).filter(({ what }) => LIMITED[what]);
  rows($("limits"), limits, () => make("li", ""), (item, { what, reason }) => put(item, `${LIMITED[what]} are not available. ${capitalized(reason)}`));
}
