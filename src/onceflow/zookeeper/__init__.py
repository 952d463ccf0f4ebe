"""Sessions with ZooKeeper, for brokers and consumers: the interface, and kazoo behind it."""
