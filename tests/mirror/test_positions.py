"""Positions that this version did not write."""

import pytest

from onceflow.client.transactional import TransactionalProducer
from onceflow.mirror.errors import MirrorStopped
from onceflow.mirror.positions import OWNER_KEY, Names, create_topics, read_stored
from tests.mirror.conftest import Clusters


@pytest.mark.parametrize(
    ("key", "value"), [(b'["visits",0]', b'{"version":1}'), (OWNER_KEY, b'{"version":1}'), (b"[]", b'{"version":2}')]
)
def test_other_positions_are_refused(clusters: Clusters, key: bytes, value: bytes) -> None:
    names = Names(clusters.topic)
    create_topics(clusters.target, names, 1)
    with TransactionalProducer(clusters.target_broker.bootstrap_servers, names.transactional_id) as producer:
        producer.begin()
        producer.send(names.positions, value, key, partition=0)
        producer.flush()
        producer.commit()
    with pytest.raises(MirrorStopped, match=f"offset 0 of {names.positions} is not a record of this version's mirror"):
        read_stored(clusters.target, names)
