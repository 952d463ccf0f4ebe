"""Redis without Spark: its address, the route to its server, the meaning of its errors, a pool of connections."""
