// Requests to /api/v1: a few at once, cancelled when they are not needed any more.

const AT_ONCE = 4; // The server runs few archive queries at once; the live feed needs a connection as well.
const TRIES = 4;
const RETRY_MS = 1_000;
const waiting = [];
let running = 0;

/** A refusal of the server; its text may be shown. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? `the server responded with status ${status}`);
    this.status = status;
    this.code = body.code ?? "";
  }
}

/** The address of a request; null and empty parameters are left out, a list is repeated. */
export function address(path, parameters = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") words.append(name, one);
    }
  }
  const text = words.toString();
  return `/api/v1/${path}${text ? `?${text}` : ""}`;
}

/** Returns the response's body, with its source and the address of the next page. Throws ApiError and AbortError. */
export async function ask(path, parameters, signal) {
  return await follow(address(path, parameters), signal);
}

export async function follow(url, signal) {
  await turn(signal);
  try {
    for (let attempt = 1; ; attempt += 1) {
      const response = await fetch(url, { signal });
      if (response.status === 401) location.assign("/login");
      const body = await bodyOf(response);
      if (response.ok) return { body, source: response.headers.get("Onceflow-Source"), next: nextOf(response) };
      if (body.code !== "busy" || attempt === TRIES) throw new ApiError(response.status, body);
      await pause(1_000 * Number(response.headers.get("Retry-After")) || RETRY_MS, signal);
    }
  } finally {
    release();
  }
}

/** The JSON of a response; a server that is not ours may respond with something else. */
async function bodyOf(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error instanceof SyntaxError) throw new ApiError(response.status, {});
    throw error;
  }
}

async function turn(signal) {
  if (running >= AT_ONCE) await new Promise((begin) => waiting.push(begin));
  else running += 1;
  if (signal?.aborted) release();
  signal?.throwIfAborted();
}

/** Hands the place to the next request that waits. */
function release() {
  const begin = waiting.shift();
  if (begin) begin();
  else running -= 1;
}

const nextOf = (response) => response.headers.get("Link")?.match(/<([^>]+)>;\s*rel="next"/)?.[1] ?? null;

export function pause(ms, signal) {
  return new Promise((done, fail) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); fail(signal.reason); }, { once: true });
  });
}

/** Links to the same rows as files. */
export const filesOf = (path, parameters, name) => [
  ["CSV", address(path, { ...parameters, format: "csv" }), `${name}.csv`],
  ["JSON", address(path, parameters), `${name}.json`],
];
