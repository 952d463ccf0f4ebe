"""The file to hand to spark-submit; it takes the options of `onceflow run`.

    cp onceflow-0.1.0-py3-none-any.whl onceflow.zip
    PYTHONPATH=$PWD/onceflow.zip spark-submit --master spark://HOST:7077 --executor-memory 1G \\
      --total-executor-cores 2 --py-files onceflow.zip submit.py --bootstrap HOST:9092 --redis redis://HOST:6379/1 \\
      --checkpoint hdfs://HOST/clicks --trigger '5 seconds'

`python -m onceflow.cli.submit` prints where this file lies. The wheel needs the name .zip, because Spark hands only
.zip, .egg and .jar on to the executors' Python. PYTHONPATH is for the driver's machine: Spark asks the source for its
offsets there in Python processes that do not see `--py-files`. What the wheel needs (msgspec, numpy, pyarrow, redis,
kio, crc32c, lz4, zstandard, cramjam, click) has to be in the Python of driver and executors, or come by `--archives`.
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
