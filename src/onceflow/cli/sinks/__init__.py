"""`onceflow sink`: the commands show and reset."""

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.sinks.reset import reset
from onceflow.cli.sinks.show import show


@click.group(cls=Commands)
def sink() -> None:
    """Show and reset the state of exactly-once sinks.

    \b
    Example:
      onceflow sink show redis --checkpoint ./checkpoint
      onceflow sink show kafka
    """


sink.add_command(show)
sink.add_command(reset)
