"""The command line, the supervisor of processes, and the package's tools for tests."""

from tests.mutants.mutant import Mutant

_OFFSETS = "cli/kafka/test_offset_range.py::"
_GROUPS = "cli/kafka/test_groups.py::"
_SERVICES = "test_services.py::"
_DISK = "log/test_faulty_disk.py::"

MUTANTS = (
    Mutant(
        "clicks/moments.py",
        "        return int(text) * (1000 if len(text) in (9, 10) else 1)",
        "        return int(text) * (1000 if len(text) == 10 else 1)",
        _OFFSETS + "test_durations_and_moments",
    ),
    Mutant(
        "clicks/moments.py",
        "            moment = moment.replace(tzinfo=zone)",
        "            moment = moment.astimezone()",
        _OFFSETS + "test_times_without_zone_are_utc",
    ),
    Mutant(
        "cli/kafka/offset_range.py",
        "max(ends[number] - place.number, starts[number])",
        "max(ends[number] - place.number - 1, starts[number])",
        _OFFSETS + "test_consume_prints_the_range",
    ),
    Mutant(
        "cli/kafka/groups.py",
        "        targets[place] = min(max(target, start), end)",
        "        targets[place] = max(target, start)",
        _GROUPS + "test_reset_changes_offsets_only_with_execute",
    ),
    Mutant(
        "cli/kafka/groups.py",
        "        if members and execute:",
        "        if False:",
        _GROUPS + "test_describe_shows_members_and_their_partitions",
    ),
    Mutant(
        "cli/kafka/groups.py",
        "        for topic in dict.fromkeys(topic for topic, _ in targets) if execute else ():",
        "        for topic in dict.fromkeys(topic for topic, _ in targets):",
        _GROUPS + "test_reset_changes_offsets_only_with_execute",
    ),
    Mutant(
        "services.py",
        '        _signal_group(process.pid, signal.SIGKILL)\n        _respond({"ended": name, "code": code})',
        '        _respond({"ended": name, "code": code})',
        _SERVICES + "test_descendants_end_with_the_killed_command",
    ),
    Mutant(
        "services.py",
        "        for name in reversed(list(self.processes)):",
        "        for name in list(self.processes):",
        _SERVICES + "test_children_end_in_reverse_order",
    ),
    Mutant(
        "testing/disk.py",
        "        for position, data in self.pending:\n            _apply(self.durable, position, data)\n",
        "        for position, data in self.pending[:-1]:\n            _apply(self.durable, position, data)\n",
        _DISK + "test_synced_writes_survive",
    ),
    Mutant(
        "testing/disk.py",
        "                self._disk.faults[EIO] += 1\n                self._node.pending.clear()\n",
        "                self._disk.faults[EIO] += 1\n",
        _DISK + "test_a_failed_sync_forgets",
    ),
    Mutant(
        "testing/disk.py",
        "        if self._generation != self._disk._generation:",
        "        if False:",
        _DISK + "test_the_power_stays_off",
    ),
    Mutant(
        "testing/in_process.py",
        "        run, self._run = self._run, None\n",
        "        run = self._run\n",
        "testing/test_in_process.py::test_restarted_broker_keeps_port_and_data",
    ),
)
