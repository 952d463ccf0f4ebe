"""`onceflow demo` and `onceflow reset`: run the whole pipeline on this machine, and delete its data."""

import contextlib
import json
import shutil
from pathlib import Path

import click

from onceflow.cli.logs import print_line
from onceflow.cli.options import DASHBOARD_PORT, DEMO_DIRECTORY, DEMO_LOG_BYTES, refuse_together
from onceflow.cli.refusals import confirm
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

CHECKPOINTS = "checkpoints"
"""Directory of `onceflow run`'s checkpoints, inside the demo's."""


@click.command()
@click.option(
    "--seconds", type=click.IntRange(min=1), help="Stop this long after the first counted events, then verify."
)
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEMO_DIRECTORY,
    show_default=True,
    help="Directory of the log, the counts, the checkpoint and the processes' logs. The next start resumes from it.",
)
@click.option(
    "--lively",
    is_flag=True,
    help="Generate thousands of users and several operating systems instead of the tutorial article's ten users.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1 << 20),
    default=DEMO_LOG_BYTES,
    show_default=True,
    help="Stop generating when the log holds about this number of bytes; nothing is deleted.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DASHBOARD_PORT,
    show_default=True,
    help="Port of the dashboard; 0 for any free port.",
)
@click.option("--json", "as_json", is_flag=True, help="With --seconds: print verify's result as one JSON document.")
def demo(seconds: int | None, directory: Path, lively: bool, max_bytes: int, port: int, as_json: bool) -> None:
    """Run broker, Redis, Spark, event generator and dashboard on this machine.

    All processes end with this command, after Ctrl-C and when it is killed. Data is kept in .onceflow; the next start
    resumes from it, and 'onceflow reset' deletes it.

    \b
    onceflow demo                 until Ctrl-C
    onceflow demo --lively        with thousands of users
    onceflow demo --seconds 20    for scripts: exit code 0 only if every event was counted exactly once
    """
    if seconds is None:
        refuse_together(["as_json"], "--json prints the result of verify at the end; it needs --seconds")
    from onceflow.cli.demo.processes import Laptop

    with Laptop(directory, lively=lively, max_bytes=max_bytes, page_port=port, quiet=as_json) as laptop:
        if seconds is None:
            # Ctrl-C is how this ends, not a failure.
            with contextlib.suppress(KeyboardInterrupt, click.Abort):
                laptop.start()
                laptop.watch()
            return
        laptop.start()
        laptop.watch(seconds)
        code = laptop.conclude(as_json=as_json)
    click.get_current_context().exit(code)


@click.command()
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEMO_DIRECTORY,
    show_default=True,
    help="Directory of the demo. It is deleted except for checkpoints/, which belongs to 'onceflow run'.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print the deleted paths as one JSON document.")
def reset(directory: Path, yes: bool, as_json: bool) -> None:
    """Delete the demo's log, counts and checkpoint. Asks for confirmation.

    Counts of 'onceflow run' are deleted with 'onceflow sink reset redis'.
    """
    deleted = _reset_demo(directory, yes)
    if as_json:
        click.echo(json.dumps({"deleted": deleted}))
    else:
        click.echo("deleted: " + ", ".join(deleted) if deleted else "nothing to delete")


def _reset_demo(directory: Path, yes: bool) -> list[str]:
    from onceflow.cli.demo.processes import running_demo

    if not directory.is_dir():
        return []
    pid = running_demo(directory)
    if pid is not None:
        raise OnceflowError(f"the demo in {directory} is running, pid {pid}; {Remedy.STOP_DEMO} first")
    if not (directory / "demo.json").exists():
        raise OnceflowError(
            f"nothing was deleted: {directory} is not a demo directory (no demo.json); {Remedy.FORGET_RUN}"
        )
    if not yes:
        confirm(f"Delete {directory.resolve()} with its log, counts and checkpoint?", "deleted")
    return _delete_except_checkpoints(directory)


def _delete_except_checkpoints(directory: Path) -> list[str]:
    """Delete the directory; keep CHECKPOINTS if not empty, because their counts are not in the demo's Redis."""
    if not any(directory.glob(f"{CHECKPOINTS}/*")):
        shutil.rmtree(directory)
        return [str(directory)]
    # demo.json is deleted last: while it exists, the command can be repeated after an interruption.
    deleted = [path for path in sorted(directory.iterdir()) if path.name != CHECKPOINTS]
    for path in sorted(deleted, key=lambda path: path.name == "demo.json"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    print_line(f"kept: {directory / CHECKPOINTS}, checkpoints of 'onceflow run', whose counts are elsewhere")
    return [str(path) for path in deleted]
