"""Takes a checkpoint's lock with a JVM of its own, says so, and waits to be killed: `DIRECTORY` is the argument."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from pyspark.java_gateway import launch_gateway

from onceflow.spark.exactly_once.checkpoint_lock import take_lock

session = SimpleNamespace(_jvm=launch_gateway().jvm)  # type: ignore[no-untyped-call]
lock = take_lock(session, Path(sys.argv[1]), "a")
print("locked", flush=True)
time.sleep(120)
