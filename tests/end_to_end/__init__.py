"""The whole pipeline as processes: broker, Redis, Spark driver, killed and restarted."""
