"""Internal topics of a cluster: the partition that has the state of a key, and their creation.

The leader of a partition coordinates the keys in it: groups in `__consumer_offsets`, transactional ids in
`__transaction_state` (GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor).
"""

import sys
from array import array

_INT32 = 2**32
_INT32_MIN = -(2**31)


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition of a key: Java's hash of the string, its absolute value, modulo the count."""
    if partition_count == 1:
        return 0
    signed = java_hash(key)
    return (0 if signed == _INT32_MIN else abs(signed)) % partition_count


def java_hash(text: str) -> int:
    """Return Java's String.hashCode."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) % _INT32
    return value - _INT32 if value >= -_INT32_MIN else value
