"""The exactly-once protocol that both sinks share: batch, checkpoint, proof and decision."""
