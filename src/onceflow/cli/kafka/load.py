"""`onceflow load`: a topic's records as Parquet files, for offline analysis."""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli.options import bootstrap_option, json_option
from onceflow.cli.output import counted
from onceflow.cli.security import kafka_settings, open_cluster
from onceflow.cli.spark import ignore_pandas_warnings, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command()
@click.argument("topic")
@click.argument("output", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="Tasks that read at the same time."
)
@click.option(
    "--decode",
    metavar="SCHEMA",
    help="Columns of JSON values, as 'uid STRING, click_count BIGINT'; see docs/pushdown.md.",
)
@click.option("--accept-data-loss", is_flag=True, help="Start after records that were deleted before they were loaded.")
@bootstrap_option
@json_option
def load(
    topic: str, output: Path, tasks: int, decode: str | None, accept_data_loss: bool, bootstrap: str, as_json: bool
) -> None:
    """Load the records of TOPIC that were added since the last load into Parquet files in OUTPUT.

    Each load is a directory OUTPUT/load=N, which is there whole or not at all, also after a crash. Its offsets are kept
    with it, so that the next load starts where it ended. Read OUTPUT with Spark, DuckDB, pandas or pyarrow.

    \b
    Example:
      onceflow load user_events events --tasks 4 --decode 'uid STRING, click_count BIGINT'
    """
    from onceflow.spark.load import load as run_load
    from onceflow.spark.session import build_session

    options = {"kafka.bootstrap.servers": bootstrap}
    options |= {f"kafka.{name}": value for name, value in kafka_settings().items()}
    if decode is not None:
        options["decode"] = decode
    ignore_pandas_warnings()
    with contextlib.ExitStack() as open_now:

        def session() -> "SparkSession":
            log = output / "_spark.log"
            spark = build_session("onceflow load", f"local[{tasks}]", java_home=java_home(), log_file=log)
            open_now.callback(spark.stop)
            return spark

        cluster = open_now.enter_context(open_cluster(bootstrap))
        done = run_load(
            session, cluster, topic, output, tasks=tasks, options=options, accept_data_loss=accept_data_loss
        )
    if as_json:
        click.echo(json.dumps(None if done is None else {"directory": str(output / done.name), **asdict(done)}))
    elif done is None:
        click.echo(f"{topic} has no records beyond the last load")
    else:
        click.echo(f"loaded {counted(done.records, 'record')} of {topic} into {output / done.name}")
