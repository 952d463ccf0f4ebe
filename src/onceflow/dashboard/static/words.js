// Numbers, times and durations as text. Counts are JSON numbers, or decimal text above 2^53.

const whole = new Intl.NumberFormat("en");
const oneDigit = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const alwaysOneDigit = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (value) => whole.format(BigInt(value));

export const rate = (value) => (value < 100 ? oneDigit : whole).format(value < 100 ? value : Math.round(value));

export const percent = (part, all) => (all > 0 ? `${alwaysOneDigit.format((100 * part) / all)}%` : "");

export const plural = (value, one, many) => `${count(value)} ${String(value) === "1" ? one : many}`;

/** An error of the server with a capital letter and a full stop. */
export const capitalized = (text) => `${text[0].toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;

/** Local time of day, after the date if it is not today. */
export function clock(at_ms, seconds = true) {
  const at = new Date(at_ms);
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(seconds && { second: "2-digit" }) };
  const time = at.toLocaleTimeString("en-GB", options);
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${time}`;
}

/** A duration in its two largest units: 0.8 s, 42 s, 3 min 05 s, 2 h 10 min, 3 d 4 h. */
export function duration(ms) {
  if (ms < 950) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 9_950) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h ${String(Math.floor((seconds % 3_600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3_600)} h`;
}

/** A duration in whole units, for texts that change every second: "12 s", "3 min". */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1_000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** Text from an event with control and direction characters, which could hide or reorder letters, escaped. */
export function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The other fields of an event as text, from their JSON. */
export function valuesOf(extra) {
  if (!extra) return "";
  try {
    const fields = JSON.parse(extra);
    return Object.entries(fields).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(" · ");
  } catch {
    return extra;
  }
}
