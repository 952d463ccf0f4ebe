"""The source's parts: options, positions, planning of micro-batches and read tasks."""
