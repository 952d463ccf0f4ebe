// Time in the chosen time zone: the buckets' starts, and moments as text.

export const MINUTE_MS = 60_000;
export const HOUR_MS = 3_600_000;
export const DAY_MS = 86_400_000;
export const WIDTH_MS = { minute: MINUTE_MS, hour: HOUR_MS, day: DAY_MS };

const formats = new Map();

function format(zone, options) {
  const key = `${zone} ${JSON.stringify(options)}`;
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", ...options }));
  return formats.get(key);
}

const FIELDS = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** The clock of a zone at a moment, as if it were UTC. */
function local_ms(at_ms, zone) {
  const part = Object.fromEntries(format(zone, FIELDS).formatToParts(at_ms).map(({ type, value }) => [type, Number(value)]));
  return Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second) + (((at_ms % 1_000) + 1_000) % 1_000);
}

const offset_ms = (at_ms, zone) => local_ms(at_ms, zone) - at_ms;

/** The moment at which the clock of a zone shows a time that is given as if it were UTC. */
function moment(local, zone) {
  const guess = local - offset_ms(local, zone);
  return local - offset_ms(guess, zone);
}

export function startOf(per, at_ms, zone) {
  const local = local_ms(at_ms, zone);
  const start = local - (((local % WIDTH_MS[per]) + WIDTH_MS[per]) % WIDTH_MS[per]);
  return per === "day" ? moment(start, zone) : at_ms - (local - start);
}

/** The start of the next bucket; a day may have 23 or 25 hours. */
export const next = (per, start_ms, zone) => (per === "day" ? startOf("day", start_ms + 26 * HOUR_MS, zone) : start_ms + WIDTH_MS[per]);

/** The end of the bucket with the last moment before `end_ms`. */
export const endOf = (per, end_ms, zone) => next(per, startOf(per, end_ms - 1, zone), zone);

/** A moment from the text of a field datetime-local; null if it is not valid. */
export function fromField(text, zone) {
  const local = Date.parse(`${text}Z`);
  return Number.isNaN(local) ? null : moment(local, zone);
}

export const toField = (at_ms, zone) => new Date(local_ms(at_ms, zone)).toISOString().slice(0, 16);

const DATE = { day: "numeric", month: "short", year: "numeric" };
const TIME = { hour: "2-digit", minute: "2-digit" };

export const date = (at_ms, zone) => format(zone, { weekday: "short", ...DATE }).format(at_ms);
export const shortDate = (at_ms, zone) => format(zone, { day: "numeric", month: "short" }).format(at_ms);
export const time = (at_ms, zone) => format(zone, TIME).format(at_ms);
export const seconds = (at_ms, zone) => format(zone, { ...TIME, second: "2-digit" }).format(at_ms);
export const dateTime = (at_ms, zone) => `${format(zone, DATE).format(at_ms)}, ${time(at_ms, zone)}`;
export const exactly = (at_ms, zone) => `${format(zone, DATE).format(at_ms)}, ${seconds(at_ms, zone)}`;

/** A bucket as text: its date, or the date and its first and last moment. */
export function bucket(start_ms, end_ms, per, zone) {
  if (per === "day") return date(start_ms, zone);
  return `${shortDate(start_ms, zone)}, ${time(start_ms, zone)} – ${time(end_ms, zone)}`;
}

/** All zones by name, UTC first. */
export const names = () => ["UTC", ...Intl.supportedValuesOf("timeZone").filter((name) => name !== "UTC")];
