#!/bin/sh
# The Python of Spark's workers on one machine: without pyspark.zip in PYTHONPATH. pip has installed the same modules as
# files with cached bytecode; Python compiles the zip file's modules again in each worker and each query start.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        "$SPARK_HOME"/python/lib/*.zip | "$SPARK_HOME"/jars/*.jar) ;;
        *) kept=$kept:$entry ;;
    esac
done
# numpy starts a thread for each processor, which takes a third of a worker's start. Spark limits the threads of its tasks
# by OMP_NUM_THREADS; this limits those of a source's process too.
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-${OMP_NUM_THREADS:-1}}"
PYTHONPATH=${kept#:} exec "$ONCEFLOW_WORKER_PYTHON" "$@"
