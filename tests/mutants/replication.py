"""Replication: what leader, follower and controller may forget, each found by the simulation of a cluster."""

from tests.mutants.mutant import Mutant

_SIMULATION = "broker/cluster/test_replica_simulation.py::test_replicas_keep_acknowledged_records"
_REPLICAS = "broker/cluster/replicas.py"
_FETCHER = "broker/cluster/fetcher.py"

MUTANTS = (
    # The high watermark ignores replicas that the controller was asked to add (KIP-497).
    Mutant(
        _REPLICAS,
        "return self.isr if self.wanted is None else self.isr | self.wanted",
        "return self.isr",
        _SIMULATION,
    ),
    # Truncation to the high watermark instead of by epoch (KIP-101).
    Mutant(
        _FETCHER,
        "return max(min(end_offset, known_end), log.log_start_offset)",
        "return max(min(log.high_watermark, known_end), log.log_start_offset)",
        _SIMULATION,
    ),
    # A leader counts what it has not synced.
    Mutant(
        _REPLICAS,
        "        offset = stored_offset\n        maximal_isr",
        "        offset = leader_end_offset\n        maximal_isr",
        _SIMULATION,
    ),
    # A follower reports what it has not synced.
    Mutant(
        _FETCHER,
        "    offset = log.durability.stored_offset\n    return offset,",
        "    offset = log.log_end_offset\n    return offset,",
        _SIMULATION,
    ),
    # A replica joins before it has what the former leader has acknowledged.
    Mutant(
        _REPLICAS,
        "reached = max(high_watermark, self.epoch_start_offset)",
        "reached = high_watermark",
        _SIMULATION,
    ),
    # A record is acknowledged by fewer replicas than min.insync.replicas.
    Mutant(
        _REPLICAS,
        "if len(self.isr) < self.required(min_isr):",
        "if not self.isr:",
        _SIMULATION,
    ),
    # A fetcher that waits for a sync is not woken when its partition gets another leader.
    Mutant(
        _FETCHER,
        "        following.on_stored()\n        if following.is_truncating:",
        "        if following.is_truncating:",
        _SIMULATION,
    ),
    # A follower whose log parts from the leader's counts.
    Mutant(
        "broker/handlers/fetch.py",
        "    return last_epoch < 0 or (\n",
        "    return last_epoch < 2**31 or (\n",
        _SIMULATION,
    ),
    # A log that ends later in the same epoch does not part.
    Mutant(
        "log/partition.py",
        "return end if end.epoch < epoch or end.end_offset < offset else None",
        "return end if end.epoch < epoch else None",
        _SIMULATION,
    ),
    # Any live replica can lead.
    Mutant(
        "broker/cluster/state.py",
        "if broker in live and broker in isr:\n            return Elected(broker, tuple(",
        "if broker in live:\n            return Elected(broker, (broker,) + tuple(",
        _SIMULATION,
    ),
    # The in-sync replicas may become none.
    Mutant(
        "broker/cluster/controller.py",
        "isr = tuple(broker for broker in state.isr if broker not in offline) or state.isr[-1:]",
        "isr = tuple(broker for broker in state.isr if broker not in offline)",
        _SIMULATION,
    ),
    # An election does not begin an epoch.
    Mutant(
        "broker/cluster/state.py",
        "leader_epoch=self.leader_epoch + 1,",
        "leader_epoch=self.leader_epoch,",
        _SIMULATION,
    ),
    # A response to a follower does not wait for the replicas.
    Mutant(
        "broker/storage/partitions.py",
        "        while self._waiting and self._waiting[0][0] <= high_watermark:",
        "        while self._waiting and self._waiting[0][0] <= self.log.durability.stored_offset:",
        _SIMULATION,
    ),
    # A leader begins its epoch at the start of its log.
    Mutant(
        "broker/cluster/replication.py",
        "epoch_start_offset=log.log_end_offset,",
        "epoch_start_offset=log.log_start_offset,",
        _SIMULATION,
    ),
    # A follower does not sync the batches before a wrong one, and never fetches again.
    Mutant(
        _FETCHER,
        "                finally:\n                    # After an error too",
        "                except TypeError:\n                    raise\n"
        "                else:\n                    # After an error too",
        _SIMULATION,
    ),
)
