"""Parts of the source: options, positions, planning of micro-batches, and read tasks."""
