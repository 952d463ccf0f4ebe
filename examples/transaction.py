"""Write in a transaction that another process may commit: python examples/transaction.py HOST:PORT TOPIC"""

import sys

from onceflow.client import TransactionalProducer

if len(sys.argv) != 3:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic = sys.argv[1:]
producer = TransactionalProducer(bootstrap, "example-transaction")
producer.begin()
producer.send(topic, b"seen after the commit", key=b"user-1")
producer.flush()
# These three values suffice to finish the transaction, for example after a kill of this process.
kept = (producer.transactional_id, producer.producer_id, producer.epoch)
producer.close()

resumed = TransactionalProducer.resume(bootstrap, *kept)
resumed.commit()
resumed.close()
print(f"committed the transaction of producer {kept[1]}, epoch {kept[2]}")
