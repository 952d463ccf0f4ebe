"""Attack programs: each module is one client with excessive requests, and runs as a process of its own.

`python -m tests.broker.attacks.NAME BOOTSTRAP [OPTIONS]` prepares its topics and members, prints `ATTACKING` and
attacks until its standard input is closed or its own limits are reached. `neighbour.py` measures an innocent client
beside it.
"""
