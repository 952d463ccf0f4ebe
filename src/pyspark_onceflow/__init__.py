"""Registration of `format("onceflow")`: Spark loads `DefaultSource` of each top-level package pyspark_*."""

from onceflow.spark.source import OnceflowDataSource as DefaultSource

__all__ = ["DefaultSource"]
