"""`onceflow sink`: every test of it that asks a broker."""

from tests.cli.sinks.test_group import (  # noqa: F401
    output,
    query,
    test_a_checkpoint_older_than_the_output_is_told_with_the_way_out,
    test_a_driver_left_over_from_before_a_reset_stops,
    test_both_copies_of_a_marker_of_kafka_beside_a_checkpoint,
    test_copies_that_differ_are_told,
    test_one_copy_is_enough_and_none_is_told,
    test_reset_of_kafka_forgets_both_copies_and_the_checkpoint_and_no_record,
    test_reset_of_kafka_is_refused_while_a_driver_runs_or_has_a_transaction_open,
    test_reset_of_kafka_keeps_a_checkpoint_whose_sink_is_not_there,
    test_the_way_out_can_be_copied,
)
