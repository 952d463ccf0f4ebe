"""Processor time of the page: of its server and of a browser with tabs that are all visible; and its frames.

`python -m benchmarks.tabs [RATE...]`

`onceflow run` counts, `onceflow dashboard` serves, and clicks come at a steady rate. Percentages are of one core. The
pause between two frames of a tab shows whether the page is smooth: a browser aims at 17 ms.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.child import Child, processor_seconds, tree
from benchmarks.now import HASH_KEY, START_S, TOPIC, counted_topic
from onceflow import services

RATES = (1_000, 50_000)
TABS = (0, 1, 5)
SETTLE_S, SECONDS, FRAMES_S = 5.0, 15.0, 5.0
SPARE_S = 10.0
"""Clicks keep coming while tabs open and close."""
RECORD_PAUSES = """() => {
    window.pauses = [];
    let last = performance.now();
    const frame = (now) => { window.pauses.push(now - last); last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""


def measure(directory: Path, rates: Sequence[int]) -> None:
    """Print processor time and pauses for each rate and number of tabs."""
    with (
        counted_topic(directory, driver=True) as (bootstrap, url),
        dashboard(directory, bootstrap, url) as (server, address),
        sync_playwright() as playwright,
        Child([sys.executable, "-m", "benchmarks.steady_clicks"], directory / "clicks.log") as clicks,
    ):
        browser = playwright.chromium.launch(executable_path=chromium())
        for rate in rates:
            for count in TABS:
                seconds = SETTLE_S + SECONDS + FRAMES_S + SPARE_S
                clicks.tell("produce", bootstrap=bootstrap, topic=TOPIC, rate=rate, seconds=seconds)
                print(f"{rate:,} events/s, {count} tabs: {observed(browser, server, address, count)}", flush=True)
                clicks.respond()
        browser.close()


def observed(browser: Browser, server: int, address: str, count: int) -> str:
    """Return what `count` tabs with the page cost, and the pauses between their frames."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tabs = [context.new_page() for _ in range(count)]
    for tab in tabs:
        tab.goto(address)
    time.sleep(SETTLE_S)
    begin, before = time.monotonic(), processor_time(server)
    time.sleep(SECONDS)
    after, seconds = processor_time(server), time.monotonic() - begin
    # Only now: a recorder has the browser draw 60 frames a second, which the page does not need.
    for tab in tabs:
        tab.evaluate(RECORD_PAUSES)
    time.sleep(FRAMES_S)
    frames = pauses(tabs)
    context.close()
    of_server, of_browser = (100 * (end - start) / seconds for start, end in zip(before, after, strict=True))
    return f"server {of_server:.0f} %, browser {of_browser:.0f} %{frames}"


def pauses(tabs: Sequence[Page]) -> str:
    """Return p99 and maximum of the pauses between frames of all tabs."""
    all_ms = sorted(pause for tab in tabs for pause in tab.evaluate("window.pauses"))
    if not all_ms:
        return ""
    return f"; between two frames p99 {all_ms[int(0.99 * len(all_ms))]:.0f} ms, at most {all_ms[-1]:.0f} ms"


def processor_time(server: int) -> tuple[float, float]:
    """Return the processor seconds of the server and of the browser's processes."""
    ours = [pid for pid in tree(os.getpid()) if Path(f"/proc/{pid}/comm").read_text().startswith(("chrom", "headless"))]
    return processor_seconds(server), sum(map(processor_seconds, ours))


def chromium() -> str:
    """Return the path of the browser. Raises SystemExit without one."""
    executable = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if executable is None:
        raise SystemExit("no chromium on PATH: call make browser")
    return executable


@contextmanager
def dashboard(directory: Path, bootstrap: str, url: str) -> Iterator[tuple[int, str]]:
    """Start `onceflow dashboard`; return its process id and its address."""
    port = services.free_port()
    command = [sys.executable, "-m", "onceflow", "dashboard", "--bootstrap", bootstrap, "--redis", url]
    command += ["--hash-key", HASH_KEY, "--topic", TOPIC, "--port", str(port)]
    with (directory / "dashboard.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not services.is_listening(port):
            assert time.monotonic() < deadline, (directory / "dashboard.log").read_text()
            time.sleep(0.1)
        yield server.pid, f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def main(words: Sequence[str]) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as directory:
        measure(Path(directory), [int(word) for word in words] or RATES)


if __name__ == "__main__":
    main(sys.argv[1:])
