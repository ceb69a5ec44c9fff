"""The server of tests/mcp_server.py on its standard input and output, without its 1.1 s of imports.

`python tests/mcp_server.py forks SOCKET` imports them once and waits. `python -S
tests/ready_mcp.py SOCKET stdio` is what a client starts, kills and listens to: it hands its three
files and its environment over, a fork serves them, and both end together, with the same exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable


def ask(place: str) -> int:
    """Have standard input served; return the server's exit code."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place)
        socket.send_fds(line, [json.dumps(dict(os.environ)).encode()], [0, 1, 2])
        for number in (0, 1):  # the pipes end when the server does
            os.close(number)
        return (line.recv(1) or b"\x01")[0]


def forks(place: str, run: Callable[[], None]) -> None:
    """Serve everybody who asks, each in a process of its own."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _keep(line, run)
            line.close()


def _keep(line: socket.socket, run: Callable[[], None]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    environment, files, _, _ = socket.recv_fds(line, 1_000_000, 3)
    child = os.fork()
    if child == 0:
        line.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(json.loads(environment))
        run()
        os._exit(0)
    for file in files:
        os.close(file)

    def ends_with_it() -> None:
        line.recv(1)
        os.kill(child, signal.SIGKILL)

    threading.Thread(target=ends_with_it, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    line.send(bytes([code % 256]))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1]))
