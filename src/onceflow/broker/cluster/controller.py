"""The controller's state machine: events in, decisions out; no socket, thread or clock.

Order of the outputs of each event: the decision is applied to the state in memory first. Then its partition states are
written to ZooKeeper, each with the version of its node, all with a check of `/controller_epoch`. Only after the write
LeaderAndIsr goes to the partitions' replicas, UpdateMetadata to all live brokers, and StopReplica last; an
UpdateMetadata without partitions goes before, if brokers joined or left. The caller writes decisions in their order and
gives each broker one queue with one request in flight, so that requests arrive in the order of the decisions. A write
that is refused ends the term: the requests of this and all later decisions are not sent.

The rules are those of kafka.controller.KafkaController, PartitionStateMachine and ReplicaStateMachine of Kafka 3.9.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from onceflow.broker.cluster.decision import AddressOf, Decision, Outbox
from onceflow.broker.cluster.state import (
    Elected,
    LiveBroker,
    Replicas,
    State,
    elect_first,
    elect_for_reassignment,
    elect_for_shutdown,
    elect_offline,
    elect_preferred,
    plaintext_address,
)
from onceflow.broker.storage.partitions import Place
from onceflow.wire.errors import ErrorCode
from onceflow.wire.inter_broker import NO_LEADER

NO_REASSIGNMENT = "No partition reassignment is in progress."


class PartitionImage(NamedTuple):
    """A partition in the registry; it has no state yet if the former controller stopped while it was created."""

    replicas: Replicas
    state: State | None


class AlteredPartition(NamedTuple):
    """A leader's wish for the in-sync replicas of a partition (AlterPartition)."""

    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    is_recovering: bool = False


class Refusal(NamedTuple):
    """Reason against a reassignment."""

    error_code: ErrorCode
    message: str | None


class Controller:
    """State of one term as controller. Single-threaded.

    A topic that is being deleted keeps its states until its nodes are deleted; no leader is elected for it.
    """

    def __init__(
        self,
        controller_id: int,
        epoch: int,
        *,
        is_unclean_allowed: Callable[[str], bool],
        address_of: AddressOf = plaintext_address,
    ) -> None:
        """Begin a term; `is_unclean_allowed` returns `unclean.leader.election.enable` of a topic."""
        self.address_of = address_of
        self.controller_id = controller_id
        self.epoch = epoch
        self._is_unclean_allowed = is_unclean_allowed
        self.brokers: dict[int, LiveBroker] = {}
        self.shutting_down: set[int] = set()
        self.topic_ids: dict[str, UUID] = {}
        self.replicas: dict[Place, Replicas] = {}
        self.states: dict[Place, State] = {}
        self.deleting: dict[str, set[tuple[int, int]]] = {}
        """Topics to delete, each with the replicas (partition, broker) whose files may still exist."""
        self.reassigning: set[Place] = set()
        """Partitions whose replicas are being replaced."""

    # The cluster

    @property
    def live(self) -> Set[int]:
        """Brokers that can lead: live, and not shutting down."""
        return self.brokers.keys() - self.shutting_down

    def begin(
        self,
        brokers: Iterable[LiveBroker],
        topics: Mapping[str, tuple[UUID, Mapping[int, PartitionImage]]],
        deleting: Iterable[str],
        *,
        former_start: int = 0,
    ) -> Decision:
        """Take over with an image of the registry (KafkaController.onControllerFailover).

        All brokers get the live brokers first, then their replicas; partitions without a live leader get one. A leader
        that registered after `former_start`, the transaction that began the former term, may have restarted without the
        former controller: it leads in another epoch. In the same one it could append other records at offsets that
        followers copied from its former process. (Kafka's controller lets it.)
        """
        self.brokers = {broker.broker_id: broker for broker in brokers}
        for name, (topic_id, partitions) in topics.items():
            self.topic_ids[name] = topic_id
            for index, image in partitions.items():
                self.replicas[name, index] = image.replicas
                if image.state is not None:
                    self.states[name, index] = image.state
        self.deleting = {name: self._all_replicas(name) for name in deleting if name in self.topic_ids}
        outbox = self._outbox()
        outbox.announce(self.brokers)
        for broker_id in self.brokers:
            self._send_replicas(outbox, broker_id)
        outbox.tell(self.brokers, self.states)
        self.reassigning = {
            place for place, wanted in self.replicas.items() if wanted.is_reassigned and place[0] not in self.deleting
        }
        self._begin_epochs(
            outbox, {broker.broker_id for broker in self.brokers.values() if broker.epoch > former_start}
        )
        self._elect_where_possible(outbox)
        self._remove_offline(outbox, {broker for wanted in self.replicas.values() for broker in wanted.replicas})
        self._continue_deletions(outbox, self.brokers)
        self._continue_reassignments(outbox, self.brokers)
        return outbox.close()

    def _begin_epochs(self, outbox: Outbox, leaders: Container[int]) -> None:
        """Let these leaders continue in another epoch, where there are followers."""
        for place, state in list(self.states.items()):
            if state.leader in leaders and len(self.replicas[place].replicas) > 1 and place[0] not in self.deleting:
                self._change(outbox, place, state.changed(state.leader, state.isr, self.epoch))

    def _all_replicas(self, name: str) -> set[tuple[int, int]]:
        return {(index, b) for (topic, index), r in self.replicas.items() if topic == name for b in r.replicas}

    def brokers_changed(self, brokers: Iterable[LiveBroker]) -> Decision:
        """Follow the registered brokers (processBrokerChange).

        One with a new epoch left and returned, except this broker: it runs, and has only a new session.
        """
        now = {broker.broker_id: broker for broker in brokers}
        former = dict(self.brokers)
        if self.controller_id in former and self.controller_id in now:
            former[self.controller_id] = self.brokers[self.controller_id] = now[self.controller_id]
        changed = {b for b in former.keys() & now.keys() if former[b].epoch != now[b].epoch}
        departed, arrived = (former.keys() - now.keys()) | changed, (now.keys() - former.keys()) | changed
        decision = Decision()
        if departed:
            decision = self._brokers_left(departed, {b: former[b] for b in former if b not in departed})
        if arrived:
            decision = decision.then(self._brokers_arrived(arrived, now))
        return decision

    def _brokers_left(self, departed: set[int], left: dict[int, LiveBroker]) -> Decision:
        self.brokers = left
        self.shutting_down -= departed
        outbox = self._outbox()
        outbox.announce(self.brokers)
        self._elect_where_possible(outbox)
        self._remove_offline(outbox, departed)
        # The replicas that are offline now are shown, also where the state did not change.
        outbox.tell(self.brokers, [place for place in self.states if departed & set(self.replicas[place].replicas)])
        return outbox.close()

    def _brokers_arrived(self, arrived: set[int], now: dict[int, LiveBroker]) -> Decision:
        """A new broker gets everything; the others learn of it."""
        self.brokers = now
        outbox = self._outbox()
        outbox.announce(self.brokers)
        outbox.tell(arrived, self.states)
        for broker_id in arrived:
            self._send_replicas(outbox, broker_id)
        outbox.tell(
            self.brokers.keys() - arrived,
            [place for place in self.states if arrived & set(self.replicas[place].replicas)],
        )
        self._elect_where_possible(outbox)
        self._continue_deletions(outbox, arrived)
        self._continue_reassignments(outbox, arrived)
        return outbox.close()

    def _continue_deletions(self, outbox: Outbox, brokers: Container[int]) -> None:
        for name in self.deleting:
            self._continue_deletion(outbox, name, brokers)

    def _continue_deletion(self, outbox: Outbox, name: str, brokers: Container[int]) -> None:
        """Let these brokers delete their replicas; the controller's own are deleted by the caller."""
        for index, broker_id in sorted(self.deleting[name]):
            if broker_id in brokers and broker_id != self.controller_id:
                outbox.stop(broker_id, (name, index), delete=True)

    def _send_replicas(self, outbox: Outbox, broker_id: int) -> None:
        for place, wanted in self.replicas.items():
            if broker_id in wanted.replicas and place in self.states and place[0] not in self.deleting:
                outbox.lead_or_follow([broker_id], place)

    def _install(self, outbox: Outbox, place: Place, elected: Elected) -> None:
        state = self.states[place]
        changed = state.changed(elected.leader, elected.isr, self.epoch)
        if elected.is_unclean:
            changed = replace(changed, is_recovering=True)
            outbox.report_unclean(place, elected.leader, state.isr)
        self._change(outbox, place, changed)

    def config_changed(self, name: str) -> Decision:
        """Elect leaders that the configuration of a topic now allows (TopicUncleanLeaderElectionEnable)."""
        outbox = self._outbox()
        if self._is_unclean_allowed(name):
            self._elect_where_possible(outbox, name)
        return outbox.close()

    def _elect_where_possible(self, outbox: Outbox, name: str | None = None) -> None:
        """Elect leaders of new and offline partitions, of one topic or of all
        (PartitionStateMachine.triggerOnlinePartitionStateChange)."""
        live = self.live
        for place, wanted in self.replicas.items():
            if place[0] in self.deleting or name not in (None, place[0]):
                continue
            state = self.states.get(place)
            if state is None:
                self._create_state(outbox, place)
            elif state.leader not in self.brokers:
                unclean = self._is_unclean_allowed(place[0])
                elected = elect_offline(wanted.replicas, state.isr, live, unclean=unclean)
                if elected is not None:
                    self._install(outbox, place, elected)

    def _remove_offline(self, outbox: Outbox, candidates: Set[int]) -> None:
        """Remove replicas of dead brokers from the in-sync replicas, the last one excepted (OfflineReplica)."""
        offline = candidates - self.brokers.keys()
        if not offline:
            return
        for place, state in list(self.states.items()):
            if place[0] in self.deleting or not offline & {*state.isr, state.leader}:
                continue
            leader = NO_LEADER if state.leader in offline else state.leader
            isr = tuple(broker for broker in state.isr if broker not in offline) or state.isr[-1:]
            if (leader, isr) != (state.leader, state.isr):
                self._change(outbox, place, state.changed(leader, isr, self.epoch))

    def _create_state(self, outbox: Outbox, place: Place) -> None:
        elected = elect_first(self.replicas[place].replicas, self.live)
        if elected is None:
            return
        self.states[place] = State(elected.leader, 0, elected.isr, self.epoch, 0)
        outbox.write(place, is_new=True)
        outbox.lead_or_follow(elected.isr, place, is_new=True)
        outbox.tell(self.brokers, [place])

    def _change(self, outbox: Outbox, place: Place, state: State) -> None:
        """Set a state, and send it to the live replicas and to all brokers."""
        self.states[place] = state
        outbox.write(place)
        outbox.lead_or_follow([b for b in self.replicas[place].replicas if b in self.brokers], place)
        outbox.tell(self.brokers, [place])

    def _outbox(self) -> Outbox:
        return Outbox(self)

    def refresh(self, broker_id: int) -> Decision:
        """Send a broker everything again, instead of requests that were dropped."""
        outbox = self._outbox()
        outbox.announce([broker_id])
        self._send_replicas(outbox, broker_id)
        outbox.tell([broker_id], self.states)
        self._continue_deletions(outbox, [broker_id])
        return outbox.close()

    # Topics

    def add_partitions(self, name: str, topic_id: UUID, partitions: Mapping[int, PartitionImage]) -> Decision:
        """Add a topic, or partitions to it; those without a live replica get a leader when one comes."""
        self.topic_ids[name] = topic_id
        outbox = self._outbox()
        for index, (wanted, state) in partitions.items():
            self.replicas[name, index] = wanted
            if state is None:
                self._create_state(outbox, (name, index))
            else:
                self.states[name, index] = state
                outbox.lead_or_follow(wanted.replicas, (name, index))
                outbox.tell(self.brokers, [(name, index)])
        return outbox.close()

    def delete_topic(self, name: str) -> Decision:
        """Stop all replicas of a topic and delete their files (TopicDeletionManager)."""
        if name not in self.topic_ids or name in self.deleting:
            return Decision()
        self.deleting[name] = self._all_replicas(name)
        self.reassigning = {place for place in self.reassigning if place[0] != name}
        outbox = self._outbox()
        outbox.tell(self.brokers, [place for place in self.states if place[0] == name])
        self._continue_deletion(outbox, name, self.brokers)
        return outbox.close()

    def replica_deleted(self, name: str, index: int, broker_id: int) -> bool:
        """Note that a broker has deleted its replica; return whether it was the last one of the topic."""
        pending = self.deleting.get(name)
        if pending is None:
            return False
        pending.discard((index, broker_id))
        return not pending

    def own_replicas_deleted(self, name: str) -> bool:
        """Note that the files on this broker are deleted; return whether no other broker has any."""
        self.deleting[name] = {replica for replica in self.deleting[name] if replica[1] != self.controller_id}
        return not self.deleting[name]

    def topic_deleted(self, name: str) -> None:
        """Forget a topic whose nodes are deleted."""
        self.deleting.pop(name, None)
        self.topic_ids.pop(name, None)
        for place in [place for place in self.replicas if place[0] == name]:
            del self.replicas[place]
            self.states.pop(place, None)

    # Requests of brokers and clients

    def alter_partitions(
        self, broker_id: int, broker_epoch: int, wishes: Mapping[Place, AlteredPartition]
    ) -> tuple[Decision, Mapping[Place, State | ErrorCode] | ErrorCode]:
        """Change in-sync replicas as their leader asks (KafkaController.tryProcessAlterPartition)."""
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            return Decision(), ErrorCode.stale_broker_epoch
        outbox = self._outbox()
        results: dict[Place, State | ErrorCode] = {}
        for place, wish in wishes.items():
            result = self._altered(broker_id, place, wish)
            if isinstance(result, State) and result.version != self.states[place].version:
                self.states[place] = result
                outbox.write(place)
            results[place] = result
        outbox.tell(self.brokers, [place for place in wishes if place in self.states])
        return outbox.close(), results

    def _altered(self, broker_id: int, place: Place, wish: AlteredPartition) -> State | ErrorCode:
        state = self.states.get(place)
        if state is None:
            return ErrorCode.unknown_topic_or_partition
        if wish.version > state.version or wish.leader_epoch > state.leader_epoch:
            return ErrorCode.not_controller
        if wish.leader_epoch < state.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if (broker_id, wish.isr, wish.is_recovering) == (state.leader, state.isr, state.is_recovering):
            return state
        if wish.version < state.version:
            return ErrorCode.invalid_update_version
        if wish.is_recovering and (len(wish.isr) > 1 or not state.is_recovering):
            return ErrorCode.invalid_request
        if (
            broker_id != state.leader
            or broker_id not in wish.isr
            or not set(wish.isr) <= {*self.replicas[place].replicas}
        ):
            return ErrorCode.invalid_request
        if not set(wish.isr) <= set(self.live):
            return ErrorCode.ineligible_replica
        return replace(
            state,
            isr=wish.isr,
            is_recovering=wish.is_recovering,
            controller_epoch=self.epoch,
            version=state.version + 1,
        )

    def shut_down(self, broker_id: int, broker_epoch: int) -> tuple[Decision, Sequence[Place] | ErrorCode]:
        """Move leaders from a broker that will stop; return the partitions that it still leads.

        A partition with one replica keeps its leader until the broker has left (KafkaController.doControlledShutdown).
        """
        broker = self.brokers.get(broker_id)
        if broker is None:
            return Decision(), ErrorCode.broker_not_available
        if broker.epoch != broker_epoch:
            return Decision(), ErrorCode.stale_broker_epoch
        self.shutting_down.add(broker_id)
        outbox = self._outbox()
        for place, wanted in self.replicas.items():
            state = self.states.get(place)
            if (
                broker_id not in wanted.replicas
                or len(wanted.replicas) == 1
                or state is None
                or place[0] in self.deleting
            ):
                continue
            if state.leader != broker_id:
                self._stop_follower(outbox, place, state, broker_id)
                continue
            elected = elect_for_shutdown(wanted.replicas, state.isr, self.brokers, self.shutting_down)
            if elected is not None:
                self._change(outbox, place, state.changed(elected.leader, elected.isr, self.epoch))
        remaining = [
            place
            for place, state in self.states.items()
            if state.leader == broker_id and len(self.replicas[place].replicas) > 1
        ]
        return outbox.close(), remaining

    def _stop_follower(self, outbox: Outbox, place: Place, state: State, broker_id: int) -> None:
        outbox.stop(broker_id, place, delete=False)
        if broker_id in state.isr and len(state.isr) > 1:
            isr = tuple(broker for broker in state.isr if broker != broker_id)
            self._change(outbox, place, state.changed(state.leader, isr, self.epoch))

    def imbalanced(self, percent_max: int) -> list[Place]:
        """Return partitions whose preferred replica could lead, of brokers that lead too few of theirs.

        A broker has too few if others lead more than this percentage of them
        (KafkaController.checkAndTriggerAutoLeaderRebalance).
        """
        preferred: dict[int, list[Place]] = {}
        for place, state in self.states.items():
            if place[0] not in self.deleting and state.leader in self.brokers:
                preferred.setdefault(self.replicas[place].replicas[0], []).append(place)
        moved: list[Place] = []
        for broker_id, places in preferred.items():
            elsewhere = [place for place in places if self.states[place].leader != broker_id]
            if broker_id in self.live and 100 * len(elsewhere) > percent_max * len(places):
                moved += [place for place in elsewhere if broker_id in self.states[place].isr]
        return moved

    def elect_leaders(self, places: Iterable[Place], *, unclean: bool) -> tuple[Decision, Mapping[Place, ErrorCode]]:
        """Elect the preferred leaders of partitions, or leaders of offline ones from any live replica."""
        outbox = self._outbox()
        results = {place: self._elect(outbox, place, unclean=unclean) for place in places}
        return outbox.close(), results

    def _elect(self, outbox: Outbox, place: Place, *, unclean: bool) -> ErrorCode:
        wanted, state = self.replicas.get(place), self.states.get(place)
        if wanted is None:
            return ErrorCode.unknown_topic_or_partition
        if place[0] in self.deleting:
            return ErrorCode.invalid_topic_exception
        if state is None:
            return ErrorCode.eligible_leaders_not_available if unclean else ErrorCode.preferred_leader_not_available
        is_online = state.leader in self.brokers
        if is_online and (unclean or state.leader == wanted.replicas[0]):
            return ErrorCode.election_not_needed
        if unclean:
            elected = elect_offline(wanted.replicas, state.isr, self.live, unclean=True)
        else:
            elected = elect_preferred(wanted.replicas, state.isr, self.live)
        if elected is None:
            return ErrorCode.eligible_leaders_not_available if unclean else ErrorCode.preferred_leader_not_available
        self._install(outbox, place, elected)
        return ErrorCode.none

    # Reassignments

    def reassign(
        self, targets: Mapping[Place, Sequence[int] | None], *, checks_brokers: bool = True
    ) -> tuple[Decision, Mapping[Place, Refusal]]:
        """Begin to replace the replicas of partitions; None cancels what was begun. Return the refusals.

        The new replicas copy the partition; `complete_reassignments` removes the others when all of them are in sync
        (KafkaController.processApiPartitionReassignment). Without `checks_brokers` new replicas may be away.
        """
        outbox = self._outbox()
        refusals: dict[Place, Refusal] = {}
        for place, target in targets.items():
            refusal = self._refusal(place, target, self.brokers if checks_brokers else None)
            if refusal is not None:
                refusals[place] = refusal
            else:
                wanted = self.replicas[place]
                self._reassign(outbox, place, wanted.reassigned(wanted.origin if target is None else target))
        return outbox.close(), refusals

    def _refusal(self, place: Place, target: Sequence[int] | None, live: Container[int] | None) -> Refusal | None:
        """Return the reason against new replicas (KafkaController.validateReplicas), with Kafka's messages."""
        wanted, state = self.replicas.get(place), self.states.get(place)
        if wanted is None or place[0] in self.deleting:
            if target is None:
                return Refusal(ErrorCode.no_reassignment_in_progress, NO_REASSIGNMENT)
            return Refusal(ErrorCode.unknown_topic_or_partition, "The partition does not exist.")
        if target is None and not wanted.is_reassigned:
            return Refusal(ErrorCode.no_reassignment_in_progress, NO_REASSIGNMENT)
        after = wanted.reassigned(wanted.origin if target is None else target)
        shown = _shown("ArrayBuffer", target or ())
        away = [broker for broker in after.adding if live is not None and broker not in live]
        message = None
        if not after.target:
            message = "Empty replica list specified in partition reassignment."
        elif len(set(after.target)) < len(target or after.target):
            message = f"Duplicate replica ids in partition reassignment replica list: {shown}"
        elif min(after.target) < 0:
            message = f"Invalid broker id in replica list: {shown}"
        elif away:
            message = (
                "Replica assignment has brokers that are not alive. Replica list:"
                f" {_shown('ArrayBuffer', after.adding)}, live broker list: {_shown('Set', sorted(self.brokers))}"
            )
        elif state is not None and not set(state.isr) & set(after.replicas):
            # Kafka deletes the last replica in sync here.
            message = f"None of the replicas {list(after.replicas)} is in sync; the only ones in sync are {state.isr}"
        return None if message is None else Refusal(ErrorCode.invalid_replica_assignment, message)

    def _reassign(self, outbox: Outbox, place: Place, wanted: Replicas) -> None:
        current = self.replicas[place]
        if wanted == current and place in self.reassigning:
            return
        self.reassigning.add(place)
        if wanted != current:
            self.replicas[place] = wanted
            outbox.assign(place[0])
            self._remove_replicas(outbox, place, [b for b in current.replicas if b not in wanted.replicas])
        self._start_copies(outbox, place)

    def _start_copies(self, outbox: Outbox, place: Place) -> None:
        """Send all replicas the next leader epoch, in which the leader knows those to add."""
        state, wanted = self.states.get(place), self.replicas[place]
        if state is None:
            self._create_state(outbox, place)
        elif not set(wanted.target) <= set(state.isr):
            self._change(outbox, place, state.changed(state.leader, state.isr, self.epoch))

    def _continue_reassignments(self, outbox: Outbox, brokers: Iterable[int]) -> None:
        """Send reassigned replicas to brokers that were away or had another controller."""
        brokers = set(brokers)
        for place in self.reassigning:
            if set(self.replicas[place].target) & brokers:
                self._start_copies(outbox, place)

    def complete_reassignments(self) -> tuple[Sequence[Decision], Mapping[Place, Sequence[int]]]:
        """Complete the reassignments whose new replicas are all in sync: one of them leads, the others are deleted.

        Return the decisions in their order, and the replicas of these partitions. The states are written before the
        assignments: the next controller finds what is left to do. Kafka continues also without a live new replica; here
        the partition waits for one.
        """
        live = self.live
        outbox, after = self._outbox(), self._outbox()
        completed: dict[Place, Sequence[int]] = {}
        for place in sorted(self.reassigning):
            state, wanted = self.states.get(place), self.replicas[place]
            if state is None or not set(wanted.target) <= set(state.isr):
                continue
            leader = state.leader if {state.leader} & set(wanted.target) & live else None
            leader = elect_for_reassignment(wanted.target, state.isr, live) if leader is None else leader
            if leader is None:
                continue
            self.replicas[place] = Replicas(wanted.target)
            self._change(outbox, place, state.changed(leader, state.isr, self.epoch))
            self._remove_replicas(outbox, place, wanted.removing)
            self.reassigning.discard(place)
            completed[place] = wanted.target
            after.assign(place[0])
        after.tell(self.brokers, completed)
        return ([outbox.close(), after.close()] if completed else []), completed

    def _remove_replicas(self, outbox: Outbox, place: Place, removed: Iterable[int]) -> None:
        """Remove replicas from the in-sync set, and delete their files (ReplicaStateMachine, OfflineReplica)."""
        for broker_id in removed:
            state = self.states.get(place)
            if state is not None and broker_id in state.isr:
                leader = NO_LEADER if state.leader == broker_id else state.leader
                isr = tuple(broker for broker in state.isr if broker != broker_id)
                self._change(outbox, place, state.changed(leader, isr, self.epoch))
            if state is not None:
                outbox.stop(broker_id, place, delete=True)


def _shown(kind: str, brokers: Iterable[int]) -> str:
    """Format a collection as Scala does."""
    return f"{kind}({', '.join(map(str, brokers))})"
