"""One connection pipelines ApiVersions requests as fast as the broker takes them."""

import sys

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient

REQUESTS = 100


def main() -> None:
    client = RawClient(sys.argv[1])
    ready()
    while not is_over():
        for _ in range(REQUESTS):
            client.send(apis.API_VERSIONS, 3, client_software_name="attack", client_software_version="1")
        for _ in range(REQUESTS):
            client.receive_frame()


if __name__ == "__main__":
    main()
