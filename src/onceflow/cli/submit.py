"""Application file for spark-submit, with the options of `onceflow run`.

    spark-submit --master spark://HOST:7077 --executor-memory 1G --total-executor-cores 2 \\
      --py-files onceflow-0.1.0-py3-none-any.whl submit.py --bootstrap HOST:9092 --redis redis://HOST:6379/1 \\
      --checkpoint hdfs://HOST/clicks --trigger '5 seconds'

`python -m onceflow.cli.submit` prints the path of this file. The wheel's dependencies (msgspec, numpy, pyarrow, redis,
kio, crc32c, lz4, zstandard, cramjam, click) must be installed for driver and executors, or be passed with `--archives`.
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
