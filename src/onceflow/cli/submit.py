"""The file to hand to spark-submit; it takes the options of `onceflow run`.

    spark-submit --master spark://HOST:7077 --executor-memory 1G --total-executor-cores 2 \\
      --py-files onceflow-0.1.0-py3-none-any.whl submit.py --bootstrap HOST:9092 --redis redis://HOST:6379/1 \\
      --checkpoint hdfs://…/clicks

Driver and executors need msgspec, pyarrow, numpy, redis and Kafka's codecs, in their Python or by `--archives`;
`python -m onceflow.cli.submit` prints where this file lies.
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
