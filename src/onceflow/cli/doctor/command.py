"""The command `onceflow doctor`."""

import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from onceflow.cli.doctor import machine, servers
from onceflow.cli.doctor.findings import Check, Finding, State, run
from onceflow.cli.options import DEMO_DIRECTORY, REDIS_PORT, bootstrap_option, json_option, redis_options
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.security import security
from onceflow.client.addresses import parse_bootstrap
from onceflow.listening import is_loopback


@click.command()
@bootstrap_option
@redis_options
@click.option(
    "--data",
    "directory",
    type=click.Path(path_type=Path),
    default=DEMO_DIRECTORY,
    show_default=True,
    help="Data directory of the broker or the demo; its disk is checked.",
)
@json_option
@click.pass_context
def doctor(
    context: click.Context, bootstrap: str, redis_url: str, hash_key: str, directory: Path, as_json: bool
) -> None:
    """Check what the other commands need: packages, Java, ports, disk, Kafka, Redis and clocks.

    Each problem is shown with its remedy. The command changes nothing and ends within 20 seconds. Servers at the
    default addresses may be missing; servers that you specify must respond. The exit code is 1 if a check failed, but
    not for warnings.

    \b
    Examples:
      onceflow doctor
      onceflow doctor --bootstrap kafka.example:9092 --redis redis://redis.example/1
      onceflow doctor --json | jq '.checks[] | select(.state == "failed")'
    """
    sources = {name: context.get_parameter_source(name) for name in ("bootstrap", "redis_url")}
    is_default = {name: source == ParameterSource.DEFAULT for name, source in sources.items()}
    expected = expected_ports(bootstrap, redis_url)
    checks: dict[str, Check] = {
        "packages": machine.packages,
        "java": partial(machine.java, os.environ),
        "redis server": machine.redis_server,
        "ports": lambda: [
            machine.port(number, user, remedy, expected=expected.get(number))
            for number, (user, remedy) in machine.PORTS.items()
        ],
        "disk": lambda: [machine.disk(directory)],
        # Read here: a thread has no click context.
        "kafka": partial(servers.kafka, bootstrap, security(), is_default=is_default["bootstrap"]),
        "redis": partial(servers.redis, redis_url, hash_key, is_default=is_default["redis_url"]),
    }
    findings = run(checks)
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps({"ok": is_sound(findings), "checks": [asdict(finding) for finding in findings]}))
        else:
            print_findings(findings)
    context.exit(0 if is_sound(findings) else 1)


def expected_ports(bootstrap: str, redis_url: str) -> dict[int, str]:
    """Return the ports of this machine on which --bootstrap and --redis expect servers."""
    redis_parts = urlsplit(redis_url)
    addresses = [(address.host, address.port, "--bootstrap") for address in parse_bootstrap(bootstrap)]
    if redis_parts.scheme in ("redis", "rediss"):
        addresses.append((redis_parts.hostname or "", redis_parts.port or REDIS_PORT, "--redis"))
    return {port: option for host, port, option in addresses if is_loopback(host)}


def is_sound(findings: list[Finding]) -> bool:
    """Return whether no check failed."""
    return all(finding.state != State.FAILED for finding in findings)


def print_findings(findings: list[Finding]) -> None:
    """Print a line for each check, its remedy below, and the numbers of warnings and failures."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        click.echo(f"{finding.state:<11}  {finding.check:<{width}}  {finding.message}")
        if finding.remedy is not None:
            click.echo(f"{'':<11}  {'':<{width}}  → {finding.remedy}")
    states = [finding.state for finding in findings]
    failed, warnings = states.count(State.FAILED), states.count(State.WARNING)
    click.echo(f"{counted(failed, 'failure')}, {counted(warnings, 'warning')}")
