// What the page shows, kept in its address: a link, a reload and the back button give the same view.

const DEFAULTS = { view: "overview", range: "", from: "", to: "", per: "", metric: "events", chart: "bars", zone: "", user: "", q: "" };
const CHOICES = {
  view: ["overview", "users", "events"],
  range: ["", "live", "today", "1h", "24h", "7d", "30d", "custom"],
  per: ["", "minute", "hour", "day"],
  metric: ["events", "clicks", "users"],
  chart: ["bars", "line"],
};
const listeners = [];
let current = parsed(location.search);

/** Reads an address; what is not a choice becomes the default. */
export function parsed(search) {
  const words = new URLSearchParams(search);
  const state = { ...DEFAULTS, filters: [] };
  for (const name of Object.keys(DEFAULTS)) {
    const value = words.get(name);
    if (value !== null && (!CHOICES[name] || CHOICES[name].includes(value))) state[name] = value;
  }
  if (state.zone && !isZone(state.zone)) state.zone = "";
  for (const filter of words.getAll("filter")) {
    const at = filter.indexOf(":");
    const dimension = at > 0 ? decoded(filter.slice(0, at)) : "";
    if (dimension) state.filters.push([dimension, filter.slice(at + 1)]);
  }
  return state;
}

export function addressOf(state) {
  const words = new URLSearchParams();
  for (const name of Object.keys(DEFAULTS)) if (state[name] !== DEFAULTS[name]) words.set(name, state[name]);
  for (const [dimension, value] of state.filters) words.append("filter", `${encodeURIComponent(dimension)}:${value}`);
  const text = words.toString();
  return text ? `?${text}` : location.pathname;
}

export const state = () => current;

/** The time zone of the page's days: the chosen one, or this browser's. */
export const zone = () => current.zone || Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

/** Changes the state and the address; each change is one step of the back button unless it `replaces` the last. */
export function change(changes, { replaces = false } = {}) {
  const next = { ...current, ...changes };
  if (addressOf(next) === addressOf(current)) return;
  current = next;
  history[replaces ? "replaceState" : "pushState"](null, "", addressOf(current));
  announce();
}

export const hasFilter = (dimension, value) => current.filters.some(([name, other]) => name === dimension && other === value);

/** Adds a filter, or removes it if it is set. */
export function toggleFilter(dimension, value) {
  const others = current.filters.filter(([name, other]) => name !== dimension || other !== value);
  change({ filters: others.length < current.filters.length ? others : [...others, [dimension, value]] });
}

export function onChange(listener) {
  listeners.push(listener);
}

function announce() {
  for (const listener of listeners) listener(current);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function isZone(name) {
  try {
    return Boolean(new Intl.DateTimeFormat("en", { timeZone: name }));
  } catch {
    return false;
  }
}

addEventListener("popstate", () => {
  current = parsed(location.search);
  announce();
});
