"""Application file for spark-submit, with the options of `onceflow run`.

    cp onceflow-0.1.0-py3-none-any.whl onceflow.zip
    PYTHONPATH=$PWD/onceflow.zip spark-submit --master spark://HOST:7077 --executor-memory 1G \\
      --total-executor-cores 2 --py-files onceflow.zip submit.py --bootstrap HOST:9092 --redis redis://HOST:6379/1 \\
      --checkpoint hdfs://HOST/clicks --trigger '5 seconds'

`python -m onceflow.cli.submit` prints the path of this file. The wheel is renamed to .zip because Spark passes only
.zip, .egg and .jar to the executors' Python. PYTHONPATH is for the driver's machine: there Spark asks the source for
offsets in Python processes that do not see `--py-files`. The wheel's dependencies (msgspec, numpy, pyarrow, redis, kio,
crc32c, lz4, zstandard, cramjam, click) must be installed for driver and executors, or be passed with `--archives`.
"""

import os
import sys

from onceflow.cli import main

if __name__ == "__main__":
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        print(os.path.abspath(__file__))
    else:
        sys.argv.insert(1, "run")
        main()
