"""Spark as the commands start it."""

import os
import warnings
from pathlib import Path

import click


def is_submitted() -> bool:
    """Return whether spark-submit has started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def java_home() -> str | None:
    """Return a Java for Spark; None if spark-submit has started Spark."""
    if is_submitted():
        return None
    from onceflow import services

    return str(services.find_java(Path(click.get_app_dir("onceflow"), "java")))


def ignore_pandas_warnings() -> None:
    """Keep pyspark's warnings about versions of pandas, which is not used here, off the terminal."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
