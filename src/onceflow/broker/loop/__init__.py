"""Work on and beside the event loop: slices, deferred calls, worker threads and a watch for stalls."""
