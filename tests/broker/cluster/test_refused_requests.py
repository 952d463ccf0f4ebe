"""Requests between brokers from a client without ClusterAction: refused before their elements cost memory."""

import struct

from onceflow.broker.settings.authorization import ACL_AUTHORIZER
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_response, encode_request, request_class
from tests.broker.cluster.conftest import NewBroker
from tests.broker.raw_client import connected
from tests.wire.messages import build

SENDER = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": -1}
TOPICS = 20_000
"""The request is decoded in steps, if it is decoded."""


def test_large_requests_are_refused_undecoded(new_broker: NewBroker) -> None:
    """The last topic is damaged: a broker that decodes it closes the connection."""
    topics = [{"topic_name": "t", "partition_states": []}] * TOPICS
    payload = build(request_class(apis.STOP_REPLICA, 4), {**SENDER, "topic_states": topics})
    frame = encode_request(apis.STOP_REPLICA, 4, 1, "client", payload)[4:-3]
    settings = {"authorizer_class_name": ACL_AUTHORIZER, "super_users": "User:broker"}
    with new_broker(**settings) as broker, connected(broker.bootstrap_servers) as client:
        client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        _correlation_id, response = decode_response(apis.STOP_REPLICA, 4, client.receive_frame())
    assert response.error_code == ErrorCode.cluster_authorization_failed
