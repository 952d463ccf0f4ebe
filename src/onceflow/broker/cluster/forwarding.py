"""Creation of topics by the controller for another broker, whose clients asked for them (AutoTopicCreationManager)."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from onceflow.broker.cluster.to_controller import NoController, ToController
from onceflow.broker.topics.topics import NewTopic
from onceflow.wire.apis import CREATE_TOPICS
from onceflow.wire.errors import ErrorCode, WireError
from onceflow.wire.frames import request_class
from onceflow.wire.messages import message_of

logger = logging.getLogger(__name__)

VERSION = 7
TOPICS_MAX = 1000
"""Topics that are being created at a time; clients ask again for others."""
_TIMEOUT = timedelta(seconds=30)


class TopicForwarder:
    """Requests to the controller, without a response to the client: it asks again."""

    def __init__(self, controller: ToController) -> None:
        self._controller = controller
        self._names: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def create(self, topics: Iterable[NewTopic]) -> None:
        """Let the controller create topics, with its defaults for what they leave open."""
        wanted = [topic for topic in topics if topic.name not in self._names][: TOPICS_MAX - len(self._names)]
        if not wanted:
            return
        self._names.update(topic.name for topic in wanted)
        task = asyncio.get_running_loop().create_task(self._create(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, wanted: Sequence[NewTopic]) -> None:
        message = message_of(
            request_class(CREATE_TOPICS, VERSION),
            {
                "topics": [
                    {
                        "name": topic.name,
                        "num_partitions": topic.partition_count,
                        "replication_factor": topic.replication_factor,
                        "assignments": (),
                        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
                    }
                    for topic in wanted
                ],
                "timeout": _TIMEOUT,
                "validate_only": False,
            },
        )
        try:
            response = await self._controller.exchange(message)
            for topic in response.topics:
                if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                    logger.warning("the controller did not create topic %s: %s", topic.name, topic.error_message)
        except NoController:
            logger.debug("topics are not created: no controller is known")
        except (OSError, EOFError, WireError) as error:
            logger.warning("the controller did not respond to the creation of topics: %r", error)
        finally:
            self._names.difference_update(topic.name for topic in wanted)

    def close(self) -> None:
        """Give up the requests."""
        for task in self._tasks:
            task.cancel()
        self._controller.close()
