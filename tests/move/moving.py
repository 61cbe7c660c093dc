"""Helpers for the tests of moving memory: programs that run commands, and clients of their control socket."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from control import PATIENCE_S, UNHURRIED, connect

PROGRAMS = Path(__file__).parent / "programs"

MIB = 1 << 20
PAGE = 2 * MIB

# Memory of every movable kind: one page and several, a size that is no multiple of a page, and memory that the program maps
# with its own calls, once and twice.
OF_ALL_KINDS = (
    "small, large = allocate(PAGE), allocate(3 * PAGE + 12345)",
    "handle, at = create(2 * PAGE), reserve(8 * PAGE)",
    "own = holds(attach(at, 2 * PAGE, handle), 2 * PAGE)",
    "twin = create(PAGE)",
    "both = holds(attach(at + 4 * PAGE, PAGE, twin), PAGE)",
    "again = attach(at + 6 * PAGE, PAGE, twin)",
)


class Program:
    """A process under memlab with a control socket."""

    def __init__(self, memlab, *command, env=None, offload=True, **options):
        # A short path, because socket names are limited.
        self.runtime = Path(tempfile.mkdtemp(prefix="memlab-test-", dir="/tmp"))
        environment = {"XDG_RUNTIME_DIR": self.runtime, "SIMGPU_CONTEXT": "16MiB"} | (env or {})
        if offload:
            environment["MEMLAB_OFFLOAD"] = "1"
        self.errors_path = memlab.folder / f"errors-{self.runtime.name}"
        self.process = memlab.start(
            *command, env=environment, stdin=subprocess.PIPE, stderr=self.errors_path.open("w"), **options
        )
        self.socket = self.runtime / "memlab" / f"{self.process.pid}.sock"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.runtime)

    @property
    def errors(self):
        return self.errors_path.read_text()

    def end(self, code=0):
        """Waits for the end of the program; returns its remaining output."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == code, self.errors
        return output

    # The control socket.

    def exchange(self, data):
        """Sends raw bytes and returns the reply."""
        with connect(lambda: self.socket, lambda: self.process.poll() is None) as client:
            reply = b""
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                while piece := client.recv(1 << 16):
                    reply += piece
            except (BrokenPipeError, ConnectionResetError):
                pass  # The process closes the connection before it has read everything.
            return reply

    def ask(self, command, **more):
        request = json.dumps({"command": command, **more}).encode() + b"\n"
        deadline = time.monotonic() + PATIENCE_S
        # The process drops clients whose request takes 5 seconds to arrive.
        while not (reply := self.exchange(request)):
            assert self.process.poll() is None and time.monotonic() < deadline, self.errors
        return json.loads(reply)

    @property
    def move(self):
        return self.ask("status")["move"]

    def start(self, command, **more):
        """Starts an operation and returns its number."""
        reply = self.ask(command, **UNHURRIED | more)
        assert reply["ok"], reply
        return reply["operation"]

    def outcome(self, number):
        """Waits for the end of an operation and returns its final state."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            operation = self.move["operation"]
            assert operation["id"] == number
            if operation["phase"] in ("done", "failed"):
                return operation
            time.sleep(0.002)
        raise AssertionError(f"the operation does not end: {operation}")

    def run(self, command, **more):
        return self.outcome(self.start(command, **more))

    def succeed(self, command, **more):
        operation = self.run(command, **more)
        assert operation["phase"] == "done", operation
        return operation

    def fail(self, command, **more):
        """Runs an operation that must fail, and returns the error."""
        operation = self.run(command, **more)
        assert operation["phase"] == "failed", operation
        return operation["error"]

    def refuse(self, command, **more):
        """Requests an operation that must be refused at once, and returns the error."""
        reply = self.ask(command, **more)
        assert reply == {"ok": False, "error": reply.get("error")}, reply
        return reply["error"]

    def cycle(self):
        """Offloads and restores everything."""
        self.succeed("offload")
        self.succeed("restore")


class Console(Program):
    """`programs/console.py`: runs the lines that it reads."""

    def __init__(self, memlab, **options):
        super().__init__(memlab, sys.executable, PROGRAMS / "console.py", **options)
        self.do("use(0)")

    def send(self, line):
        """Sends a line whose execution may block."""
        print(line, file=self.process.stdin, flush=True)

    def reply(self):
        answer = json.loads(self.process.stdout.readline() or '{"error": "it has ended"}')
        assert "error" not in answer, (answer["error"], self.errors)
        return answer["value"]

    def do(self, *lines):
        """Runs lines and returns the value of the last."""
        for line in lines:
            self.send(line)
            value = self.reply()
        return value


def movable(program):
    """Allocates memory of all kinds in the program and returns its size."""
    program.do(*OF_ALL_KINDS)
    return (1 + 4 + 2 + 1) * PAGE


def is_right(program):
    program.do("check()", "both.check(again)")


def resident(program):
    """Checks that all memory is on the device, and none in host memory; returns its size."""
    move = program.move
    assert (move["state"], move["host_bytes"]) == ("resident", 0)
    if move["arena_bytes"]:
        program.succeed("restore", free_host=True)
    assert program.move["arena_bytes"] == 0
    return move["device_bytes"]
