"""Replication: what leader, follower and controller may forget; most is found by the simulation of a cluster."""

from tests.mutants.mutant import Mutant

_SIMULATION = "broker/cluster/test_replica_simulation.py::test_replicas_keep_acknowledged_records"
_REPLICAS = "broker/cluster/replicas.py"
_FETCHER = "broker/cluster/fetcher.py"
_CONTROLLER = "broker/cluster/controller.py"
_STATE = "broker/cluster/state.py"
_REPLICATION = "broker/cluster/replication.py"
_ASSIGNMENT = "broker/topics/assignment.py"
_UNCLEAN = "broker/cluster/test_controller.py::test_unclean_election_only_where_allowed"
_RACKS = "broker/cluster/test_racks.py::test_replicas_are_spread_over_racks"
_IN_RACKS = "broker/cluster/test_racks.py::test_replicas_are_in_different_racks"
_IN_RACK = "broker/cluster/test_racks.py::test_the_most_advanced_follower_is_preferred"
_OUTCOME = "broker/cluster/test_replicas.py::test_records_wait_until_the_outcome_is_known"
_AFTER_A_START = "broker/cluster/test_replicas.py::test_stored_high_watermark_holds_after_a_start"

_CLOSER = "broker/cluster/test_session_closer.py"

MUTANTS = (
    # A replica that does not fetch leaves and joins at the speed of the controller.
    Mutant(
        _REPLICAS,
        "                    self.followers[broker_id].end_offset = UNKNOWN_OFFSET",
        "                    pass",
        "broker/cluster/test_replicas.py::test_a_removed_replica_joins_after_fetching",
    ),
    # A client sees a new topic without leaders on a broker that hears of them last.
    Mutant(
        "broker/cluster/view.py",
        "return bool(self.changes) and all(",
        "return bool(self.changes) or all(",
        "broker/cluster/test_control_requests.py::test_clients_wait_shortly_for_new_leaders",
    ),
    # A follower that has caught up while another one joins waits until it fetches again.
    Mutant(
        _REPLICATION,
        "            if self.state.isr == wanted:",
        "            if False:",
        "broker/cluster/test_replicas.py::test_a_follower_joins_after_another",
    ),
    # The session after an expired one is not closed after a crash.
    Mutant(
        "zookeeper/kazoo_session.py",
        "            if self.on_session is not None:\n                self.on_session(",
        "            if self.on_session is not None and not self._is_session_lost:\n                self.on_session(",
        f"{_CLOSER}::test_session_after_an_expired_one_is_closed",
    ),
    # The session of a broker that was stopped is closed once more.
    Mutant(
        "zookeeper/kazoo_session.py",
        "            self.on_session(None)",
        "            pass",
        f"{_CLOSER}::test_frozen_broker_keeps_its_session",
    ),
    # The high watermark ignores replicas that the controller was asked to add (KIP-497).
    Mutant(
        _REPLICAS,
        "return self.isr if self.wanted is None else self.isr | self.wanted",
        "return self.isr",
        _SIMULATION,
    ),
    # NOT_CONTROLLER is taken for a request that was not carried out.
    Mutant(_REPLICATION, "if response is NOT_APPLIED:", "if response is not ErrorCode.network_exception:", _OUTCOME),
    # The present state from another controller ends what the leader has asked for.
    Mutant(
        _REPLICAS,
        "        if partition_epoch > self.partition_epoch:",
        "        if partition_epoch >= self.partition_epoch:",
        "broker/cluster/test_replicas.py::test_a_wish_outlives_the_present_state",
    ),
    # The epoch before an empty one starts again where a former leader continues it.
    Mutant(
        "log/epochs.py",
        "        if self._epochs and self._epochs[-1] == epoch:\n            return\n",
        "",
        "log/test_epochs.py::test_epoch_continues_after_an_empty_one",
    ),
    # A topic is read again only after ZooKeeper's event about it.
    Mutant(
        "broker/cluster/metadata.py",
        "        self._watch.put_back(topics)\n",
        "",
        "broker/cluster/test_control_requests.py::test_a_late_event_hides_no_partition",
    ),
    Mutant(
        "broker/cluster/participants.py",
        "when_read([place[0]], lambda",
        "when_read([], lambda",
        "broker/cluster/test_participants.py::test_a_new_partitions_marker_is_written_later",
    ),
    # Truncation to the high watermark instead of by epoch (KIP-101).
    Mutant(
        _FETCHER,
        "return min(end_offset, known_end)",
        "return min(log.high_watermark, known_end)",
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
        "        following.on_stored()\n\n    def truncate",
        "\n    def truncate",
        _SIMULATION,
    ),
    # A truncation that is forgotten when the partition gets another leader.
    Mutant(
        _FETCHER,
        "        if waiting is None:\n",
        "        if waiting is None or waiting:\n",
        "broker/cluster/test_fetchers.py::test_leading_waits_for_a_truncation",
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
    # A replica that was not in sync leads although the configuration forbids it.
    Mutant(_STATE, "    if unclean:\n        for broker", "    if live:\n        for broker", _UNCLEAN),
    # After an unclean election the former in-sync replicas still count.
    Mutant(
        _STATE,
        "return Elected(broker, (broker,), is_unclean=True)",
        "return Elected(broker, (broker, *isr), is_unclean=True)",
        "broker/cluster/test_controller.py::test_an_unclean_leader_is_alone_in_sync",
    ),
    # Other brokers do not learn that the leader recovers (KIP-704).
    Mutant(_CONTROLLER, "changed = replace(changed, is_recovering=True)", "changed = replace(changed)", _UNCLEAN),
    # The configuration of one topic lets others elect.
    Mutant(
        _CONTROLLER,
        "if place[0] in self.deleting or name not in (None, place[0]):",
        "if place[0] in self.deleting:",
        "broker/cluster/test_controller.py::test_a_configuration_allows_an_unclean_election",
    ),
    # A request for an unclean election replaces a live leader.
    Mutant(
        _CONTROLLER,
        "if is_online and (unclean or state.leader == wanted.replicas[0]):",
        "if is_online and not unclean and state.leader == wanted.replicas[0]:",
        "broker/cluster/test_controller.py::test_unclean_election_by_request",
    ),
    # A leader that was elected cleanly recovers.
    Mutant(
        _CONTROLLER,
        "if wish.is_recovering and (len(wish.isr) > 1 or not state.is_recovering):",
        "if wish.is_recovering and len(wish.isr) > 1:",
        "broker/cluster/test_controller.py::test_alter_partition",
    ),
    # Two replicas are in one rack although another one has none.
    Mutant(_ASSIGNMENT, "(racks[broker] not in used or len(used) == rack_count)", "True", _IN_RACKS),
    # Leaders go round the brokers of one rack first.
    Mutant(
        _ASSIGNMENT,
        "brokers += [of_rack.pop(0) for of_rack in left.values() if of_rack]",
        "brokers += [of_rack.pop(0) for of_rack in left.values() for _ in range(len(of_rack))]",
        _RACKS,
    ),
    # A client is sent to a follower that is not in sync, in another rack, or without the records before its offset.
    Mutant(_REPLICATION, "if broker_id in self.state.isr and racks", "if racks", _IN_RACK),
    Mutant(_REPLICATION, "and racks.get(broker_id) == rack and", "and", _IN_RACK),
    Mutant(_REPLICATION, " and follower.end_offset >= offset\n", "\n", _IN_RACK),
    # A client is sent away from the leader in its rack, or to a follower that is behind another one.
    Mutant(
        _REPLICATION,
        "if racks.get(self._replication.broker_id) == rack:\n            return None\n",
        "if racks.get(self._replication.broker_id) == rack:\n            return self._replication.broker_id\n",
        _IN_RACK,
    ),
    Mutant(_REPLICATION, "(follower.end_offset, follower.caught_up_ms, broker_id)", "(broker_id,)", _IN_RACK),
    # After a start readers see what other replicas may not have, or less than they saw.
    Mutant(_REPLICATION, "wait_for_replicas(stored)", "wait_for_replicas(partition.log.log_end_offset)", _SIMULATION),
    Mutant(_REPLICATION, "wait_for_replicas(stored)", "wait_for_replicas(0)", _AFTER_A_START),
    # The stored high watermark is the end of the log, or stays above a truncation.
    Mutant(
        "broker/storage/housekeeping.py",
        "(partition.topic, partition.index): partition.log.high_watermark\n",
        "(partition.topic, partition.index): partition.log.log_end_offset\n",
        _SIMULATION,
    ),
    Mutant(
        _FETCHER,
        "        self.lower_offsets(*place, truncation.offset)\n",
        "",
        "broker/cluster/test_replication.py::test_a_replica_returns_below_its_start",
    ),
)
