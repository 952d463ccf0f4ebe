"""Attack programs: each module is one client that asks too much, and runs as a process of its own.

`python -m tests.broker.attacks.NAME BOOTSTRAP [OPTIONS]` prepares what it needs (topics, members), prints `ATTACKING`
and attacks until its standard input is closed or its own bounds are reached. `neighbour.py` measures an innocent client
beside it.
"""
