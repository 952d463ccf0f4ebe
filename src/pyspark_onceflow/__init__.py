"""Spark imports every top-level package named pyspark_* and takes its `DefaultSource`: `format("onceflow")`."""

from onceflow.spark.source import OnceflowDataSource as DefaultSource

__all__ = ["DefaultSource"]
