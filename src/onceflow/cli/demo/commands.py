"""`onceflow demo` and `onceflow reset`: the whole pipeline on this machine, and how to forget it."""

import contextlib
import json
import shutil
from pathlib import Path

import click

from onceflow.cli.options import DEMO_DIRECTORY, refuse_together
from onceflow.cli.refusals import require_yes
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

CHECKPOINTS = "checkpoints"
"""Where `onceflow run` keeps its checkpoints, in the same folder."""


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
    help="Where log, counts, checkpoint and logs of the children are kept. The next start goes on from there.",
)
@click.option(
    "--lively",
    is_flag=True,
    help="Thousands of seeded users and several systems, not ten users with fixed ids as in the article it comes from.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1 << 20),
    default=1 << 30,
    show_default=True,
    help="The generator stops when the log holds about this many bytes; nothing is deleted.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port of the live page.")
@click.option("--json", "as_json", is_flag=True, help="With --seconds: print verify's result as one JSON document.")
def demo(seconds: int | None, directory: Path, lively: bool, max_bytes: int, port: int, as_json: bool) -> None:
    """Run broker, Redis, Spark, event generator and live page on this machine.

    Everything is started as a child of this command and ends with it, on Ctrl-C or in any other way. Data is kept
    in .onceflow, and the next start goes on where this one stopped; 'onceflow reset' forgets it.

    \b
    onceflow demo                 until Ctrl-C
    onceflow demo --lively        with thousands of users
    onceflow demo --seconds 20    for scripts: exit code 0 only if every event was counted exactly once
    """
    if seconds is None:
        refuse_together(["as_json"], "--json prints what verify found at the end: it goes with --seconds")
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
    help="The demo's folder, removed but for checkpoints/, which 'onceflow run' keeps there.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as one JSON document.")
def reset(directory: Path, yes: bool, as_json: bool) -> None:
    """Forget the demo: log, counts and checkpoint. Asks first.

    What 'onceflow run' has counted elsewhere, 'onceflow sink reset redis' forgets.
    """
    removed = _reset_demo(directory, yes)
    if as_json:
        click.echo(json.dumps({"removed": removed}))
    else:
        click.echo("removed: " + ", ".join(removed) if removed else "nothing to remove")


def _reset_demo(directory: Path, yes: bool) -> list[str]:
    from onceflow.cli.demo.processes import running_demo

    if not directory.is_dir():
        return []
    pid = running_demo(directory)
    if pid is not None:
        raise OnceflowError(f"the demo in {directory} is running, pid {pid}: {Remedy.STOP_DEMO} first")
    if not (directory / "demo.json").exists():
        raise OnceflowError(f"{directory} holds no demo (no demo.json in it): nothing was removed; {Remedy.FORGET_RUN}")
    if not yes:
        require_yes(f"Remove {directory.resolve()} with its log, counts and checkpoint?", "removed")
    return _remove_but_checkpoints(directory)


def _remove_but_checkpoints(directory: Path) -> list[str]:
    """Remove the folder, or what is in it but CHECKPOINTS: their counts are in a Redis that is not the demo's."""
    if not any(directory.glob(f"{CHECKPOINTS}/*")):
        shutil.rmtree(directory)
        return [str(directory)]
    # demo.json goes last: while it is there, the same command goes on after a stop.
    removed = [each for each in sorted(directory.iterdir()) if each.name != CHECKPOINTS]
    for each in sorted(removed, key=lambda path: path.name == "demo.json"):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
    click.echo(f"{directory / CHECKPOINTS} stays: it belongs to 'onceflow run', with counts in its own Redis", err=True)
    return [str(each) for each in removed]
