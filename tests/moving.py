"""What the tests of moving memory share: programs that do as they are told, and what the control socket says of them."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conftest import PROGRAMS

REPLY_TIMEOUT = 60.0

MIB = 1 << 20
PAGE = 2 * MIB

# Memory of every kind that can be moved: of one page and of several, of a size that fills no page, mapped by the program
# itself, once and twice.
OF_ALL_KINDS = (
    "small, large = allocate(PAGE), allocate(3 * PAGE + 12345)",
    "handle, at = create(2 * PAGE), reserve(8 * PAGE)",
    "own = holds(attach(at, 2 * PAGE, handle), 2 * PAGE)",
    "twin = create(PAGE)",
    "both = holds(attach(at + 4 * PAGE, PAGE, twin), PAGE)",
    "again = attach(at + 6 * PAGE, PAGE, twin)",
)


class Program:
    """A process under memlab that can be asked through its control socket."""

    def __init__(self, memlab, *command, env=None, offload=True, **options):
        # Short, because the name of a socket must be.
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
        """Has it end by itself, and returns what it said last."""
        output, _ = self.process.communicate(timeout=REPLY_TIMEOUT)
        assert self.process.returncode == code, self.errors
        return output

    # The control socket.

    def exchange(self, data):
        """Sends bytes as they are, and returns what comes back."""
        until = time.monotonic() + REPLY_TIMEOUT
        while not self.socket.exists() and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(REPLY_TIMEOUT)
            client.connect(str(self.socket))
            reply = b""
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                while piece := client.recv(1 << 16):
                    reply += piece
            except (BrokenPipeError, ConnectionResetError):
                pass  # It had read enough.
            return reply

    def ask(self, command, **more):
        return json.loads(self.exchange(json.dumps({"command": command, **more}).encode() + b"\n"))

    @property
    def move(self):
        return self.ask("status")["move"]

    def start(self, command, **more):
        """Starts an operation and says its number."""
        reply = self.ask(command, **more)
        assert reply["ok"], reply
        return reply["operation"]

    def outcome(self, number):
        """How an operation ended."""
        until = time.monotonic() + REPLY_TIMEOUT
        while time.monotonic() < until:
            operation = self.move["operation"]
            assert operation["id"] == number
            if operation["phase"] in ("done", "failed"):
                return operation
            time.sleep(0.002)
        raise AssertionError(f"it does not end: {operation}")

    def run(self, command, **more):
        return self.outcome(self.start(command, **more))

    def succeed(self, command, **more):
        operation = self.run(command, **more)
        assert operation["phase"] == "done", operation
        return operation

    def fail(self, command, **more):
        """Runs an operation that must not succeed, and returns why it did not."""
        operation = self.run(command, **more)
        assert operation["phase"] == "failed", operation
        return operation["error"]

    def refuse(self, command, **more):
        """Asks for an operation that must not even begin, and returns why not."""
        reply = self.ask(command, **more)
        assert reply == {"ok": False, "error": reply.get("error")}, reply
        return reply["error"]

    def cycle(self):
        """There and back."""
        self.succeed("offload")
        self.succeed("restore")


class Console(Program):
    """`programs/console.py`: does what it is told."""

    def __init__(self, memlab, **options):
        super().__init__(memlab, sys.executable, PROGRAMS / "console.py", **options)
        self.do("use(0)")

    def tell(self, line):
        """Has it do something that may wait."""
        print(line, file=self.process.stdin, flush=True)

    def told(self):
        answer = json.loads(self.process.stdout.readline() or '{"error": "it has ended"}')
        assert "error" not in answer, (answer["error"], self.errors)
        return answer["value"]

    def do(self, *lines):
        """Has it do something, and returns what came of the last."""
        for line in lines:
            self.tell(line)
            value = self.told()
        return value


def movable(program):
    """Gives it memory of all kinds, and says how much that is."""
    program.do(*OF_ALL_KINDS)
    return (1 + 4 + 2 + 1) * PAGE


def is_right(program):
    program.do("check()", "both.check(again)")


def resident(program):
    """That all memory is on the device again, none is lost, and none left over in host memory."""
    move = program.move
    assert (move["state"], move["host_bytes"]) == ("resident", 0)
    if move["arena_bytes"]:
        program.succeed("restore", free_host=True)
    assert program.move["arena_bytes"] == 0
    return move["device_bytes"]
