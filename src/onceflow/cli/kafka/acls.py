"""`onceflow acl`: add, list and remove access control lists, on any Kafka."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.refusals import confirm
from onceflow.cli.security import open_cluster
from onceflow.wire.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    PatternType,
    ResourceType,
)

OPERATIONS = {operation.spelled: operation for operation in AclOperation if operation >= AclOperation.ALL}
HEADINGS = ("PRINCIPAL", "HOST", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN")

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(cls=Commands)
def acl() -> None:
    """Add, list and remove access control lists (ACLs).

    \b
    Example:
      onceflow acl add --principal User:ada --operation Read --topic user_events --group counters
      onceflow acl list --topic user_events
    """


def resource_options(command: _Command) -> _Command:
    """Add the options that name resources."""
    for option in (
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="Topic, * for all; may be repeated."),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="Consumer group; may be repeated."),
        click.option(
            "--transactional-id", "ids", multiple=True, metavar="NAME", help="Transactional id; may be repeated."
        ),
        click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself."),
    ):
        command = option(command)
    return command


def operation_option(*, default: tuple[str, ...]) -> Callable[[_Command], _Command]:
    """Return the option of operations; none is any operation."""
    return click.option(
        "--operation",
        "operations",
        multiple=True,
        default=default,
        type=click.Choice(list(OPERATIONS), case_sensitive=False),
        show_default=bool(default),
        help="Operation; may be repeated.",
    )


@acl.command()
@click.option("--principal", "principals", multiple=True, required=True, metavar="TYPE:NAME", help="Whom it is for.")
@operation_option(default=("All",))
@resource_options
@click.option("--prefixed", is_flag=True, help="Names are prefixes: every resource whose name begins with one.")
@click.option("--host", "hosts", multiple=True, default=("*",), show_default=True, help="IP address; may be repeated.")
@click.option("--deny", is_flag=True, help="Deny instead of allow.")
@bootstrap_option
@json_option
def add(
    principals: Sequence[str],
    operations: Sequence[str],
    topics: Sequence[str],
    groups: Sequence[str],
    ids: Sequence[str],
    is_cluster: bool,
    prefixed: bool,
    hosts: Sequence[str],
    deny: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add an ACL for each combination of the options; one that exists is kept.

    \b
    Example:
      onceflow acl add --principal User:ada --operation Read --topic user_events --group counters
      onceflow acl add --principal User:eve --topic '*' --deny
    """
    from onceflow.client.admin import Admin

    for principal in principals:
        if not all(principal.partition(":")):
            raise click.BadParameter(f"'{principal}' is not TYPE:NAME, as in User:ada", param_hint="--principal")
    resources = list(_resources(topics, groups, ids, is_cluster))
    if not resources:
        raise click.UsageError("no resource is named; use --topic, --group, --transactional-id or --cluster")
    bindings = [
        AclBinding(AclPattern(kind, name, _pattern_type(kind, prefixed)), principal, host, OPERATIONS[word], permission)
        for kind, name in resources
        for principal in principals
        for host in hosts
        for word in operations
        for permission in [AclPermission.DENY if deny else AclPermission.ALLOW]
    ]
    with open_cluster(bootstrap) as cluster:
        Admin(cluster).create_acls(bindings)
    if as_json:
        click.echo(json.dumps({"added": [_shown(binding) for binding in bindings]}))
    else:
        click.echo(f"added {counted(len(bindings), 'ACL')}")


def _resources(
    topics: Sequence[str], groups: Sequence[str], ids: Sequence[str], is_cluster: bool
) -> Iterator[tuple[ResourceType, str]]:
    yield from ((ResourceType.TOPIC, name) for name in topics)
    yield from ((ResourceType.GROUP, name) for name in groups)
    yield from ((ResourceType.TRANSACTIONAL_ID, name) for name in ids)
    if is_cluster:
        yield ResourceType.CLUSTER, CLUSTER_NAME


def _pattern_type(kind: ResourceType, prefixed: bool) -> PatternType:
    return PatternType.PREFIXED if prefixed and kind != ResourceType.CLUSTER else PatternType.LITERAL


def filter_options(command: _Command) -> _Command:
    """Add the options that select ACLs."""
    for option in (
        click.option(
            "--principal", "principals", multiple=True, metavar="TYPE:NAME", help="Principal; may be repeated."
        ),
        operation_option(default=()),
        resource_options,
        click.option("--host", "hosts", multiple=True, help="Host of the ACL; may be repeated."),
        click.option(
            "--matching",
            is_flag=True,
            help="Include every ACL that applies to the named resources: prefixes and * too.",
        ),
    ):
        command = option(command)
    return command


def _filters(
    principals: Sequence[str],
    operations: Sequence[str],
    topics: Sequence[str],
    groups: Sequence[str],
    ids: Sequence[str],
    is_cluster: bool,
    hosts: Sequence[str],
    matching: bool,
) -> list[AclFilter]:
    """Return a filter for each combination of the options; an option that is not given selects everything."""
    pattern_type = PatternType.MATCH if matching else PatternType.ANY
    named = list(_resources(topics, groups, ids, is_cluster))
    resources: Sequence[tuple[ResourceType, str | None]] = named or [(ResourceType.ANY, None)]
    return [
        AclFilter(kind, name, pattern_type, principal, host, operation)
        for kind, name in resources
        for principal in principals or (None,)
        for host in hosts or (None,)
        for operation in [OPERATIONS[word] for word in operations] or (AclOperation.ANY,)
    ]


@acl.command("list")
@filter_options
@bootstrap_option
@json_option
def list_acls(bootstrap: str, as_json: bool, **selection: Any) -> None:
    """List ACLs, all or those that the options select.

    \b
    Example:
      onceflow acl list --principal User:ada
      onceflow acl list --topic user_events --matching
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        listed = {binding for wanted in _filters(**selection) for binding in admin.describe_acls(wanted)}
    _show(listed, as_json)


@acl.command()
@filter_options
@click.option("--all", "is_all", is_flag=True, help="Remove all ACLs.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_option
@json_option
def remove(is_all: bool, yes: bool, bootstrap: str, as_json: bool, **selection: Any) -> None:
    """Remove the ACLs that the options select. Asks for confirmation.

    \b
    Example:
      onceflow acl remove --principal User:ada --topic user_events --yes
    """
    from onceflow.client.admin import Admin

    if any(selection.values()) == is_all:
        raise click.UsageError("specify which ACLs to remove, or --all, but not both")
    filters = _filters(**selection)
    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        if not yes:
            count = len({binding for wanted in filters for binding in admin.describe_acls(wanted)})
            confirm(f"Remove {counted(count, 'ACL')} at {bootstrap}?", "removed")
        removed = set(admin.delete_acls(filters))
    if as_json:
        click.echo(json.dumps({"removed": [_shown(binding) for binding in sorted(removed)]}))
    else:
        click.echo(f"removed {counted(len(removed), 'ACL')}")


def _show(bindings: set[AclBinding], as_json: bool) -> None:
    shown = [_shown(binding) for binding in sorted(bindings)]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(shown))
        else:
            table([HEADINGS, *(tuple(row.values()) for row in shown)])


def _shown(binding: AclBinding) -> dict[str, str]:
    """Return an ACL in the words of Kafka's tools."""
    return {
        "principal": binding.principal,
        "host": binding.host,
        "permission": binding.permission.spelled,
        "operation": binding.operation.spelled,
        "resource_type": binding.pattern.resource_type.spelled,
        "resource_name": binding.pattern.name,
        "pattern_type": binding.pattern.pattern_type.spelled,
    }
