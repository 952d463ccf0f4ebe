"""Start one of Spark's Python workers in a fork of tests/fork_server.py, and end as it ends.

Called as `fork_client.py SOCKET -m MODULE …`, without site-packages: it must start fast.
"""

import marshal
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    started = marshal.dumps((sys.argv[3:], dict(os.environ), os.getcwd()))
    socket.send_fds(server, [len(started).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(started)
    status = server.recv(1)
sys.exit(status[0] if status else "the fork server ended")
