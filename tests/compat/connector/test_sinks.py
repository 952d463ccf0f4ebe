"""`onceflow sink`: every test of it that uses a broker."""

from tests.cli.sinks.test_group import (  # noqa: F401
    output,
    query,
    test_both_copies_of_kafka_markers_are_shown,
    test_differing_copies_do_not_fit,
    test_drivers_fail_after_a_reset,
    test_kafka_reset_deletes_markers_and_checkpoint,
    test_kafka_reset_is_refused_during_transactions,
    test_kafka_reset_without_sink_keeps_checkpoints,
    test_one_copy_of_kafka_markers_suffices,
    test_outdated_checkpoints_name_the_remedy,
    test_the_reset_command_can_be_copied,
)
