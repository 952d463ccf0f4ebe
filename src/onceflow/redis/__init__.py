"""Redis without Spark: its address, the way to it, what its errors mean, a pool of connections."""
