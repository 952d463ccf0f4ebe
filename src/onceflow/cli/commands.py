"""A group of commands that names the nearest one where a word is none of them."""

import difflib

import click


class Commands(click.Group):
    """As click's group; `onceflow` itself and every noun are one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known:
            near = difflib.get_close_matches(args[0], known, 1)
            meant = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(known)}."
            ctx.fail(f"No such command '{args[0]}'. {meant}")
        return super().resolve_command(ctx, args)
