// Connection to the server: snapshots on change, keep-alives in between, and reconnection without limit.

const SILENCE_MS = 12_000; // The server sends something at least every 5 seconds.
const RETRY_MS = 2_000;

export class Feed {
  /** Calls `onSnapshot(snapshot)` for each snapshot and `onLink(connected)` when the connection changes. */
  constructor(address, onSnapshot, onLink) {
    this.address = address;
    this.onSnapshot = onSnapshot;
    this.onLink = onLink;
    this.heardAt = performance.now();
    this.open();
    setInterval(() => this.watch(), 1_000);
    addEventListener("pagehide", () => this.source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) this.open(); });
  }

  open() {
    this.source?.close();
    const source = new EventSource(this.address);
    source.addEventListener("snapshot", (event) => { this.heard(); this.onSnapshot(JSON.parse(event.data)); });
    source.addEventListener("alive", () => this.heard());
    // The browser reconnects by itself, except after a response that is not a stream; then `watch` does.
    source.addEventListener("error", () => this.onLink(false));
    this.source = source;
    this.openedAt = performance.now();
  }

  heard() {
    this.heardAt = performance.now();
    this.onLink(true);
  }

  watch() {
    const now = performance.now();
    const silent = now - Math.max(this.heardAt, this.openedAt) > SILENCE_MS;
    const closed = this.source.readyState === EventSource.CLOSED && now - this.openedAt > RETRY_MS;
    if (silent) this.onLink(false);
    if (silent || closed) this.open();
  }
}
