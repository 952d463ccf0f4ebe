"""Command group that lists whole summaries and suggests a command for a misspelled one."""

import difflib
import sys

import click


class Commands(click.Group):
    """Class of `onceflow` itself and of every noun."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known:
            near = difflib.get_close_matches(args[0], known, 1)
            meant = f"Did you mean '{near[0]}'?" if near else f"Commands: {', '.join(known)}."
            ctx.fail(f"No such command '{args[0]}'. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        # click cuts a summary to one line; a list wraps.
        rows = [
            (name, command.get_short_help_str(sys.maxsize))
            for name, command in commands
            if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
