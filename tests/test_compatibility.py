"""The table of clients in docs/compatibility.md: each mark is a test.

`python -m tests.test_compatibility` prints the table.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.compat import test_franz_go, test_kafkajs, test_rskafka
from tests.compat.conftest import CLIENT_VERSIONS

ROOT = Path(__file__).parent
PAGE = ROOT.parent / "docs" / "compatibility.md"

CAPABILITIES = ("codecs", "idempotent", "transactional", "group, members come and go", "read_committed", "admin")
GO, JAVASCRIPT, RUST = "compat/test_franz_go.py", "compat/test_kafkajs.py", "compat/test_rskafka.py"
RECORDS, GROUPS, JAVA_TRANSACTIONS = (
    "compat/test_java_records.py",
    "compat/test_java_groups.py",
    "compat/test_java_transactions.py",
)
CODECS = "broker/test_codecs_of_clients.py::test_each_codec_is_read_by_every_client"
MEMBERS = "broker/groups/test_clients.py::test_each_record_reaches_one_member"
COMMITTED = "broker/handlers/test_read_committed.py::test_other_clients_read_committed_records"
TRANSACTIONS = "broker/transactions/test_clients.py"
ADMIN = "broker/test_admin_clients.py"

Cell = tuple[str, str]
"""(result, the test that shows it); without a test nothing passes."""


def _java(version: str) -> tuple[Cell, ...]:
    return (
        ("all", f"{RECORDS}::test_idempotent_produce_in_every_codec[{version}-zstd]"),
        ("yes", f"{RECORDS}::test_idempotent_produce_in_every_codec[{version}-none]"),
        ("yes", f"{JAVA_TRANSACTIONS}::test_offsets_move_with_the_transaction[{version}]"),
        ("yes", f"{GROUPS}::test_sticky[{version}-CooperativeStickyAssignor]"),
        ("yes", f"{JAVA_TRANSACTIONS}::test_many_transactions_with_a_reader_behind_them[{version}]"),
        ("yes", f"compat/test_java_admin.py::test_topics[{version}]"),
    )


CLIENTS: dict[str, tuple[Cell, ...]] = {
    "confluent-kafka (librdkafka)": (
        ("all", f"{CODECS}[write_with_librdkafka]"),
        ("yes", f"{CODECS}[write_with_librdkafka]"),
        ("yes", f"{TRANSACTIONS}::test_consume_transform_produce_survives_kills"),
        ("yes", f"{MEMBERS}[librdkafka-cooperative-sticky]"),
        ("yes", f"{COMMITTED}[read_with_librdkafka]"),
        ("yes", f"{ADMIN}::test_librdkafka_configures_a_topic"),
    ),
    "kafka-python": (
        ("all", f"{CODECS}[write_with_kafka_python]"),
        ("yes", f"{CODECS}[write_with_kafka_python]"),
        ("yes", f"{TRANSACTIONS}::test_kafka_python_commits_aborts_and_is_fenced"),
        ("yes", f"{MEMBERS}[kafka-python-cooperative-sticky]"),
        ("yes", f"{COMMITTED}[read_with_kafka_python]"),
        ("yes", f"{ADMIN}::test_kafka_python_administers"),
    ),
    "aiokafka": (
        ("all", f"{CODECS}[write_with_aiokafka]"),
        ("yes", f"{CODECS}[write_with_aiokafka]"),
        ("yes", f"{TRANSACTIONS}::test_aiokafka_commits_aborts_and_sends_offsets"),
        ("yes", f"{MEMBERS}[aiokafka-sticky]"),
        ("yes", f"{COMMITTED}[read_with_aiokafka]"),
        ("yes", f"{ADMIN}::test_aiokafka_administers"),
    ),
    "Java client 4.1.1": _java("4.1.1"),
    "Java client 3.9.1": _java("3.9.1"),
    "kcat 1.7.1": (
        ("all", "compat/test_kcat.py::test_keys_headers_and_codecs"),
        ("yes", "compat/test_kcat.py::test_keys_headers_and_codecs"),
        ("yes", "compat/test_kcat.py::test_a_transaction"),
        ("yes", "compat/test_kcat.py::test_members_share_a_group"),
        ("yes", "compat/test_kcat.py::test_a_transaction"),
        ("it has none", ""),
    ),
    "kafkajs 2.2.4": (
        ("all", f"{JAVASCRIPT}::test_records"),
        ("yes", f"{JAVASCRIPT}::test_records"),
        ("yes", f"{JAVASCRIPT}::test_transactions"),
        ("yes", f"{JAVASCRIPT}::test_a_group"),
        ("yes", f"{JAVASCRIPT}::test_transactions"),
        ("yes", f"{JAVASCRIPT}::test_admin"),
    ),
    "franz-go 1.22.2": (
        ("all", f"{GO}::test_records"),
        ("yes", f"{GO}::test_records"),
        ("yes", f"{GO}::test_transactions"),
        ("yes", f"{GO}::test_a_group"),
        ("yes", f"{GO}::test_transactions"),
        ("yes", f"{GO}::test_admin"),
    ),
    "rskafka 0.6.0": (
        ("all", f"{RUST}::test_records"),
        ("it has none", ""),
        ("it has none", ""),
        ("it has none", ""),
        ("it has none", ""),
        ("yes", f"{RUST}::test_offsets"),
    ),
}

TRIED = (
    "confluent-kafka (librdkafka)",
    "kafka-python",
    "aiokafka",
    "Java client 4.1.1",
    "Java client 3.9.1",
    "kcat 1.7.1",
    "kafkajs 2.2.4",
    "franz-go 1.22.2",
    "rskafka 0.6.0",
)
"""Neither a client nor its marks may be dropped: the table only grows. requirements.lock has the other versions."""

HAS_NONE = {("kcat 1.7.1", "admin")} | {("rskafka 0.6.0", mark) for mark in CAPABILITIES[1:5]}

TOOLS = (
    "TopicCommand",
    "ConsoleProducer",
    "ConsoleConsumer",
    "ConsumerGroupCommand",
    "GetOffsetShell",
    "DeleteRecordsCommand",
    "ConfigCommand",
    "LogDirsCommand",
    "TransactionsCommand",
    "ProducerPerformance",
    "ConsumerPerformance",
    "VerifiableProducer",
    "VerifiableConsumer",
    "DumpLogSegments",
)
"""Kafka's tools, each run on Kafka and on the broker; none may be dropped."""


def table() -> str:
    rows = [("client", *CAPABILITIES), ("---",) * (1 + len(CAPABILITIES))]
    rows += [(name, *(passes for passes, _test in cells)) for name, cells in CLIENTS.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text(), "print it with python -m tests.test_compatibility"


def test_nothing_that_passes_is_dropped() -> None:
    assert [name for name in TRIED if name not in CLIENTS] == []
    marks = {(name, mark): cell for name in TRIED for mark, cell in zip(CAPABILITIES, CLIENTS[name], strict=True)}
    assert {mark for mark, (_passes, test) in marks.items() if not test} == HAS_NONE


def test_each_client_is_run_in_its_version() -> None:
    run = {f"Java client {version}" for version in CLIENT_VERSIONS} | {f"franz-go {test_franz_go.VERSION}"}
    run |= {f"rskafka {test_rskafka.VERSION}"}
    run |= {package.replace("@", " ") for package in test_kafkajs.PACKAGES}
    installed = {"confluent-kafka (librdkafka)", "kafka-python", "aiokafka", "kcat 1.7.1"}
    assert CLIENTS.keys() <= run | installed
    page = PAGE.read_text()
    for name, version in (name.rsplit(" ", 1) for name in TRIED if name[-1].isdigit()):
        assert re.search(rf"^\| {name} \| [^|]*\b{re.escape(version)}\b", page, re.MULTILINE), (name, version)


def test_every_mark_is_a_test() -> None:
    assert all(len(cells) == len(CAPABILITIES) for cells in CLIENTS.values())
    assert all(bool(test) == (passes != "it has none") for cells in CLIENTS.values() for passes, test in cells)
    tests = sorted({str(ROOT / test) for cells in CLIENTS.values() for _passes, test in cells if test})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(collect, capture_output=True, text=True, cwd=ROOT.parent, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]


def test_every_tool_is_run_and_named() -> None:
    run = "".join((ROOT / "compat" / f"test_{name}.py").read_text() for name in ("kafka_tools", "dump_log_segments"))
    page = PAGE.read_text()
    assert [tool for tool in TOOLS if f'"{tool}"' not in run or tool not in page] == []


if __name__ == "__main__":
    print(table())
