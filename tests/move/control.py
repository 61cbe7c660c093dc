"""A client for the control socket of a traced process, as in docs/control.md."""

import json
import os
import socket
import time
from pathlib import Path


class Refused(Exception):
    """The process refused the request; the message is its reason."""


def path_of(pid):
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path(runtime) / "memlab"] if runtime else []
    for folder in [*folders, Path(f"/tmp/memlab-{os.getuid()}")]:
        if (folder / f"{pid}.sock").exists():
            return folder / f"{pid}.sock"
    raise FileNotFoundError(f"process {pid} has no control socket")


def ask(pid, timeout=30, **request):
    """One request and its reply."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        client.connect(str(path_of(pid)))
        client.sendall(json.dumps(request).encode() + b"\n")
        reply = json.loads(client.makefile().readline())
    if not reply["ok"]:
        raise Refused(reply["error"])
    return reply


def status(pid):
    return ask(pid, command="status")["move"]


def finish(pid, patience=120):
    """Waits for the end of the operation; returns its final state."""
    deadline = time.monotonic() + patience
    while (operation := status(pid)["operation"])["phase"] not in ("done", "failed"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {patience} s: {operation}")
        time.sleep(0.002)
    return operation


def operate(pid, command, **more):
    """Starts an operation that must succeed, and waits for its end."""
    ask(pid, command=command, **more)
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
