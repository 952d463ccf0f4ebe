"""A driver that locks the checkpoint of its argument with its own JVM, prints "locked" and waits to be killed."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from pyspark.java_gateway import launch_gateway

from onceflow.spark.exactly_once.checkpoint_lock import take_lock

session = SimpleNamespace(_jvm=launch_gateway().jvm)
lock = take_lock(session, Path(sys.argv[1]), "a")
print("locked", flush=True)
time.sleep(120)
