"""docs/transactions.md, whose picture and table of answers are drawn from the table of states.

`python -m onceflow.broker.transactions.page > docs/transactions.md` writes the page; a test compares.
"""

from onceflow.broker.transactions.transaction import ANSWERS, NEXT_STATES, Event, TransactionState
from onceflow.wire.errors import ErrorCode

REQUESTS = {
    Event.INIT: "InitProducerId",
    Event.ADD: "AddPartitionsToTxn, AddOffsetsToTxn",
    Event.COMMIT: "EndTxn, commit",
    Event.ABORT: "EndTxn, abort",
}

_PAGE = """\
# Transactions

<!-- Written by `python -m onceflow.broker.transactions.page > docs/transactions.md`; a test compares. -->

The broker is the coordinator of every transactional id and speaks the protocol of KIP-98 as brokers before Kafka 4 do
(`transaction.version=0`). Each change of a state is one record in `__transaction_state`, in Kafka's format; start-up
replays them.

```mermaid
stateDiagram-v2
    [*] --> Empty: the first InitProducerId
{arrows}
    Dead --> [*]
```

What a request gets in each state, once its transactional id, producer id and epoch are found right:

| state | {requests} |
|---|{rules}|
{answers}

Whoever has another producer id than the last one given is told INVALID_PRODUCER_ID_MAPPING (49); with another epoch
PRODUCER_FENCED (90), or INVALID_PRODUCER_EPOCH (47) where its version of the request does not know that yet. An
InitProducerId of an ongoing transaction aborts that and is asked again by the client, so its success says that
nothing of the one before is left. An EndTxn that is repeated because its answer was lost gets the answer of the first.

**Writing.** A transactional batch is taken where the record that added its partition is durable and the transaction is
ongoing; the coordinator and the partition decide in one turn of the event loop, so no batch can come in after the end
and leave a transaction behind that nobody finishes. Transactional batches are answered when they are durable, whatever
`acks` and the topic's flush policy say.

**The end of a transaction**, which a crash may cut anywhere:

1. EndTxn: every partition of the transaction is synced; until then everything else that concerns it waits.
2. PrepareCommit is recorded. Once it is durable the transaction is committed, and nothing can undo that.
3. A marker goes to every partition, and to the groups' offsets if there are any.
4. All markers are durable: the answer is sent, and CompleteCommit is recorded. Who was answered finds the records
   visible to readers of committed data. (Kafka answers after 2.)

An abort begins at 2, with PrepareAbort. Start-up finishes what it finds prepared. A partition whose topic was deleted
meanwhile has nothing to sync and nothing to mark; one that the disk has no room to mark is tried again every second;
one that cannot be synced keeps a commit from being decided (KAFKA_STORAGE_ERROR), and the transaction can be aborted.

**Time.** A transaction that is older than its producer's `transaction.timeout.ms` is aborted under an epoch that no
producer has, looked for every `transaction.abort.timed.out.transaction.cleanup.interval.ms`. An id that nobody used
for `transactional.id.expiration.ms` is forgotten. After epoch 32,766 a transactional id gets a new producer id; 32,767
is kept to fence its last producer with.

**Who looks after transactions** sees them with `onceflow transaction list` and `describe`, and ends one with
`onceflow transaction abort`, which asks for a producer id in the producer's stead. WriteTxnMarkers, which Kafka's
`kafka-transactions.sh abort` sends, aborts the whole transaction where the coordinator knows an open one, and writes
the marker alone where none is open; with an epoch that a known producer has not reached it is refused (47).
"""


def page() -> str:
    """docs/transactions.md."""
    arrows = [
        f"    {state.value} --> {following.value}: {event.value}"
        for state, nexts in NEXT_STATES.items()
        for event, following in nexts.items()
    ]
    answers = [
        f"| {state.value} | {' | '.join(_answer(state, event) for event in REQUESTS)} |"
        for state, nexts in NEXT_STATES.items()
        if nexts
    ]
    return _PAGE.format(
        arrows="\n".join(arrows),
        requests=" | ".join(REQUESTS.values()),
        rules="|".join("---" for _ in REQUESTS),
        answers="\n".join(answers),
    )


def _answer(state: TransactionState, event: Event) -> str:
    """Where the request leads, or what it is told without a change."""
    following = NEXT_STATES[state].get(event)
    if following is not None:
        return f"→ {following.value}"
    code = ANSWERS.get(state, {}).get(event)
    if code is None:
        # Only of InitProducerId the first answer is that of the abort which it begins.
        return f"→ {NEXT_STATES[state][Event.FENCE].value}, {_named(ErrorCode.concurrent_transactions)}"
    return _named(code) if code else "done already: success"


def _named(code: ErrorCode) -> str:
    return f"{code.name.upper()} ({code.value})"


if __name__ == "__main__":
    print(page(), end="")
