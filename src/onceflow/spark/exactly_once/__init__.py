"""The exactly-once protocol of every sink: batch, checkpoint, proof and decision."""
