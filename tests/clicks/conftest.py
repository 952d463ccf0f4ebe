"""The Spark session of the pipeline's tests; where another room has started one it is the same."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from onceflow.spark.session import build_session


@pytest.fixture(scope="session")
def spark(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    session = build_session("onceflow-tests", "local[2]", java_home=java_home, log_file=log_file)
    yield session
    session.stop()
