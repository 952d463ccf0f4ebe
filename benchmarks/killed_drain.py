"""Two kill -9 in a drain, of the driver with all its processes, each in the middle of a micro-batch's way into Redis.

The moment is the same for both: the sum of the user with the most clicks changes for the second time since the driver's
start, so the micro-batch is being written, and its commit in the checkpoint is yet to come.
"""

import time

from benchmarks.child import Child, ChildFailed
from benchmarks.stage import PEER, Stage

KILLS = 2
CHANGES = 2
OFFSETS_PER_TRIGGER_MAX = 250_000
SECONDS_MAX = 180


def wrong_users(stage: Stage, pipeline: str) -> int:
    """Users with a wrong sum after the drain has come to its end at the third attempt."""
    contender = PEER if pipeline == "jvm" else "onceflow"
    work = stage.counting(pipeline, stage.clicks.topic, offsets_per_trigger_max=OFFSETS_PER_TRIGGER_MAX)
    for _ in range(KILLS):
        with stage.new_driver(contender) as driver:
            driver.tell("drain", **work)
            wait_for_changes(stage, work["hash_key"], driver)
            driver.kill()
    with stage.new_driver(contender) as driver:
        driver.ask("drain", **work)
    return stage.wrong_users(work)


def wait_for_changes(stage: Stage, hash_key: str, driver: Child) -> None:
    """Until the busiest user's sum has changed so often. Raises ChildFailed where it does not."""
    busiest = max(stage.clicks.sums, key=lambda uid: stage.clicks.sums[uid])
    last = stage.redis.hget(f"{{{hash_key}}}:count", busiest)
    deadline = time.monotonic() + SECONDS_MAX
    changes = 0
    while changes < CHANGES:
        now = stage.redis.hget(f"{{{hash_key}}}:count", busiest)
        changes += now != last
        last = now
        if time.monotonic() > deadline or driver.has_ended:
            raise ChildFailed(f"the drain ended or did nothing before it could be killed: {driver.log}")
        time.sleep(0.0005)
