"""A client for the control socket of a traced process, as in docs/control.md."""

import json
import os
import socket
import time
from pathlib import Path

# Only a hang reaches this limit.
PATIENCE_S = 600
# The program's GPU work gets the same time to finish.
UNHURRIED = {"timeout_ms": PATIENCE_S * 1000}


class Refused(Exception):
    """The process refused the request; the message is its reason."""


def path_of(pid):
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path(runtime) / "memlab"] if runtime else []
    for folder in [*folders, Path(f"/tmp/memlab-{os.getuid()}")]:
        if (folder / f"{pid}.sock").exists():
            return folder / f"{pid}.sock"
    raise FileNotFoundError(f"process {pid} has no control socket")


def is_running(pid):
    """Returns False for an ended process, even before its parent has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def connect(path, is_running):
    """Connects to the socket at `path()`, which the process opens some time after its first use of the card."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE_S)
        try:
            client.connect(str(path()))
            return client
        except (FileNotFoundError, ConnectionRefusedError):
            client.close()
            if time.monotonic() > deadline or not is_running():
                raise
        time.sleep(0.002)


def connected(pid):
    return connect(lambda: path_of(pid), lambda: is_running(pid))


def ask(pid, **request):
    """Sends one request and returns its reply."""
    deadline = time.monotonic() + PATIENCE_S
    # The process drops clients whose request takes 5 seconds to arrive.
    while not (line := exchange(pid, json.dumps(request).encode() + b"\n")):
        if time.monotonic() > deadline or not is_running(pid):
            raise ConnectionError(f"process {pid} does not answer")
    reply = json.loads(line)
    if not reply["ok"]:
        raise Refused(reply["error"])
    return reply


def exchange(pid, data):
    with connected(pid) as client:
        try:
            client.sendall(data)
            return client.makefile().readline()
        except (BrokenPipeError, ConnectionResetError):
            return ""


def status(pid):
    return ask(pid, command="status")["move"]


def finish(pid):
    """Waits for the end of the operation; returns its final state."""
    deadline = time.monotonic() + PATIENCE_S
    while (operation := status(pid)["operation"])["phase"] not in ("done", "failed"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {PATIENCE_S} s: {operation}")
        time.sleep(0.002)
    return operation


def operate(pid, command, **more):
    """Starts an operation that must succeed, and waits for its end."""
    ask(pid, command=command, **UNHURRIED | more)
    operation = finish(pid)
    if operation["phase"] != "done":
        raise Refused(operation["error"])
    return operation


def segments(trace):
    """(start, end) of the caching allocator's device segments of 2 MiB and more in the trace."""
    taken = {}
    for line in trace.read_bytes().split(b"\n"):
        if line.startswith(b'["d+"'):
            _, _, _, device, address, size, *_ = json.loads(line)
            if device >= 0 and size >= 2 << 20:
                taken[address] = size
        elif line.startswith(b'["d-"'):
            taken.pop(json.loads(line)[4], None)
    return [(address, address + bytes_) for address, bytes_ in taken.items()]
