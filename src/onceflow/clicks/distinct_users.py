"""Numbers of distinct users in windows of the read model."""

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from onceflow.clicks.windows import Bucket, TooMuch
from onceflow.remedies import Remedy

MEMBERS_AT_ONCE = 1_000
"""Members added by one command, so that Redis can serve others in between."""
MEMBERS_MAX = 2_000_000
"""Maximum of the members that the windows of one query read."""


class UsersOfWindows:
    """Numbers of distinct users in windows; the members of a window's buckets are kept for the next window."""

    def __init__(self, client: Any, key_of: Callable[[str], str], by: str | None) -> None:
        self._redis = client
        self._key_of = key_of
        self._by = by
        self._read = 0
        self._buckets: dict[str, set[Bucket]] = {}
        self._members: dict[str, Counter[bytes]] = {}

    def count(self, buckets: Collection[Bucket], value: str) -> tuple[int, bool]:
        """Return the number of users in the buckets, and whether it is exact. Raises TooMuch, and redis-py's errors."""
        keys = [self._key(bucket, value) for bucket in buckets]
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute()
        if b"string" in kinds:
            self._refuse_more([key for key, kind in zip(keys, kinds, strict=True) if kind == b"set"])
            return self._estimate(keys, kinds), False
        if len(keys) == 1:
            return self._redis.scard(keys[0]), True
        return self._union(set(buckets), value), True

    def _refuse_more(self, keys: Sequence[str]) -> None:
        """Raise TooMuch if these sets would exceed the members that one query reads."""
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.scard(key)
        self._read += sum(pipe.execute())
        if self._read > MEMBERS_MAX:
            raise TooMuch(
                f"the windows have {self._read:,} users in their buckets, and one query reads at most "
                f"{MEMBERS_MAX:,}: {Remedy.ASK_LESS}"
            )

    def _union(self, buckets: set[Bucket], value: str) -> int:
        """Return the size of the union: only buckets that entered or left since the last window are read."""
        members, before = self._members.setdefault(value, Counter()), self._buckets.get(value, set())
        self._refuse_more([self._key(bucket, value) for bucket in before ^ buckets])
        for bucket in before - buckets:
            members.subtract(self._redis.smembers(self._key(bucket, value)))
        for bucket in buckets - before:
            members.update(self._redis.smembers(self._key(bucket, value)))
        self._buckets[value] = buckets
        self._members[value] = members = +members
        return len(members)

    def _estimate(self, keys: Sequence[str], kinds: Sequence[bytes]) -> int:
        """Merge the HyperLogLogs, and one of the sets' members, in a key that no other client sees."""
        if len(keys) == 1:
            return int(self._redis.pfcount(keys[0]))
        sets = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"set"]
        estimates = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"string"]
        merged = self._key_of(f"merged-{uuid.uuid4().hex}")
        pipe = self._redis.pipeline(transaction=True)
        pipe.pfmerge(merged, *estimates)
        for key in sets:
            members = list(self._redis.smembers(key))
            for first in range(0, len(members), MEMBERS_AT_ONCE):
                pipe.pfadd(merged, *members[first : first + MEMBERS_AT_ONCE])
        pipe.pfcount(merged)
        pipe.unlink(merged)
        return int(pipe.execute()[-2])

    def _key(self, bucket: Bucket, value: str) -> str:
        group = "" if self._by is None else f"{self._by}={value}"
        return f"{self._key_of(f'{bucket.width.name}-users')}:{bucket.start_ms}:{group}"
