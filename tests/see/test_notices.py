"""`memlab run --notify` and `--webhook`: notices go out while the program runs, unseen by the program."""

import contextlib
import itertools
import json
import os
import pty
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import PYTHON, RELEASE
from waiting import HANG_SECONDS, wait_until

MIB = 1 << 20
# Continues until each kind of notice has arrived, and prints it.
PROGRAM = """
import os, sys, time, torch
print("begins", flush=True)
net = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(net.parameters())
kept = []
for step in range(40):
    net(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.zeros(1 << 18, device="cuda"))
for _ in range(2):
    try:
        torch.zeros(1 << 34, device="cuda")
    except torch.OutOfMemoryError:
        pass
until = time.monotonic() + 600
while not all(os.path.exists(name) for name in sys.argv[1:]) and time.monotonic() < until:
    time.sleep(0.05)
print("saw", *[name for name in sys.argv[1:] if os.path.exists(name)], flush=True)
sys.exit(7)
"""
KINDS = ["leak", "low-memory", "out-of-memory"]


def recording(memlab, *options, waits_for=()):
    script = memlab.folder / "program.py"
    script.write_text(dedent(PROGRAM))
    return memlab.command, "run", "-o", "t.jsonl", *options, "--", PYTHON, script, *waits_for


def record(memlab, *options, waits_for=(), env=None):
    return memlab.run(*recording(memlab, *options, waits_for=waits_for), preload=False, memory="2GiB", env=env)


def record_until(memlab, said, *options):
    """Runs the program until memlab prints `said`. Returns the exit code and standard error."""
    errors = memlab.folder / "errors"
    command = recording(memlab, *options, waits_for=["enough"])
    with errors.open("w") as file:
        process = memlab.start(*command, preload=False, memory="2GiB", stderr=file)
    wait_until(lambda: said in errors.read_text())
    (memlab.folder / "enough").touch()
    process.communicate()
    return process.returncode, errors.read_text()


def all_told(memlab):
    """Notices that a command has appended to a file."""
    return [json.loads(line) for line in (memlab.folder / "told").read_text().splitlines()]


def told(memlab):
    """The notice with the most bytes of each kind, and the number of notices."""
    notices = all_told(memlab)
    latest = {notice["notice"]: notice for notice in sorted(notices, key=lambda notice: notice["bytes"])}
    return latest, Counter(notice["notice"] for notice in notices)


def test_a_command_is_notified_while_the_program_runs(memlab):
    """GIVEN a program that leaks, leaves little free, runs out of memory twice, and waits for the notices
    WHEN it runs with a notify command
    THEN the command receives each notice, with the trace's figures, in the environment and as JSON (a second leak notice, if
    the leak doubles)."""
    command = 'cat >> told; env | grep ^MEMLAB_ > $$; echo "to the terminal: $MEMLAB_NOTICE"; mv $$ $MEMLAB_NOTICE'
    run = record(memlab, "--notify", command, "--notify-free", "1.8GiB", waits_for=KINDS)
    assert (run.code, run.output.split("\n")[:2]) == (7, ["begins", "saw leak low-memory out-of-memory"]), run.errors
    notices, count = told(memlab)
    assert sorted(notices) == KINDS
    assert (count["out-of-memory"], count["low-memory"]) == (1, 1)
    report = memlab.report(run.trace)
    (device,) = report["devices"]
    findings = {finding["kind"]: finding for finding in report["findings"]}
    oom, leak, low = notices["out-of-memory"], notices["leak"], notices["low-memory"]
    # The second may have followed before the first was seen.
    message, what = (text.replace(" 2 times, first", "") for text in (oom["message"], findings["out_of_memory"]["what"]))
    assert (oom["bytes"], message) == (64 << 30, what)
    assert leak["bytes"] % MIB == 0 and "program.py:11 <module> allocates it" in leak["message"]
    # Free memory may fall further after the notice.
    assert (2 << 30) - device["peak_used_bytes"] <= low["bytes"] < 1.8 * (1 << 30)
    assert low["bytes"] <= low["total_bytes"] - low["used_bytes"]
    assert {notice["pid"] for notice in notices.values()} == {report["process"]["pid"]}
    assert {notice["trace"] for notice in notices.values()} == {str(run.trace)}
    assert oom["steps"] == 40 and oom["allocated_bytes"] == device["allocated_bytes"]

    variables = dict(line.split("=", 1) for line in (memlab.folder / "leak").read_text().splitlines() if "=" in line)
    # A leak that doubles causes another notice, and the commands run concurrently.
    leaks = [notice for notice in all_told(memlab) if notice["notice"] == "leak"]
    (leak,) = [notice for notice in leaks if notice["bytes"] == int(variables["MEMLAB_BYTES"])]
    assert variables["MEMLAB_MESSAGE"] == leak["message"] and variables["MEMLAB_NEXT"] == leak["next"]
    assert [int(variables[name]) for name in ("MEMLAB_PID", "MEMLAB_DEVICE", "MEMLAB_BYTES", "MEMLAB_STEPS")] == [
        leak[name] for name in ("pid", "device", "bytes", "steps")
    ]
    # The command's output is not the program's.
    assert "to the terminal: leak" in run.errors and "to the terminal" not in run.output


def test_only_requested_notices_are_sent(memlab):
    """GIVEN the same program WHEN the options require a longer leak, and no free memory
    THEN only the out-of-memory notice is sent."""
    command = "cat >> told; touch $MEMLAB_NOTICE"
    run = record(memlab, "--notify", command, "--notify-leak-steps", 100, waits_for=["out-of-memory"])
    assert run.code == 7
    _, count = told(memlab)
    assert count == {"out-of-memory": 1}


def test_a_leak_is_reported_again_once_it_has_doubled(memlab):
    """GIVEN a program that continues to leak after its first notice WHEN it has leaked ten times as much
    THEN further notices were sent, each with at least twice the bytes."""
    more = """
for _ in range(400):
    kept.append(torch.zeros(1 << 18, device="cuda"))
    optimizer.step()
while not os.path.exists("much"):
    time.sleep(0.05)
"""
    script = memlab.folder / "again.py"
    script.write_text(PROGRAM.replace("for _ in range(2):", "for _ in range(0):").replace("sys.exit(7)", more))
    command = f"cat >> told; touch leak; test $MEMLAB_BYTES -le {200 * MIB} || touch much"
    run = memlab.run(
        *(memlab.command, "run", "-o", "t.jsonl", "--notify", command, "--", PYTHON, script, "leak"), preload=False
    )
    assert run.code == 0, run.errors
    grown = sorted(json.loads(line)["bytes"] for line in (memlab.folder / "told").read_text().splitlines())
    assert len(grown) >= 2 and all(later >= 2 * earlier for earlier, later in itertools.pairwise(grown))
    assert grown[-1] > 200 * MIB


@pytest.mark.long
def test_a_command_that_fails_or_hangs_changes_nothing(memlab):
    """GIVEN a command that fails, and one that never ends
    WHEN they receive a notice THEN the program ends as without them, and one line reports each outcome."""
    failing = "touch $MEMLAB_NOTICE; exit 3"
    run = record(memlab, "--notify", failing, waits_for=["leak", "out-of-memory"])
    assert run.code == 7 and "saw" in run.output
    assert run.errors.count(f"memlab: --notify: `{failing}` ended with exit code 3\n") >= 2
    (memlab.folder / "out-of-memory").unlink()
    hanging = "trap '' TERM; echo $$ > $$; mv $$ $MEMLAB_NOTICE; sleep 1000 & wait; sleep 1000"
    options = ("--force", "--notify", hanging, "--notify-leak-steps", 100)
    run = record(memlab, *options, waits_for=["out-of-memory"])
    assert run.code == 7
    assert f"memlab: --notify: `{hanging}` outlasted the program and was ended\n" in run.errors
    pid = int((memlab.folder / "out-of-memory").read_text())
    wait_until(lambda: not running(pid))


def running(group):
    """Running processes of a group; ended ones may wait for their parent to reap them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
            state, _, at, *_ = path.read_text().rpartition(")")[2].split()
            found += [path] if int(at) == group and state not in "ZX" else []
    return found


class Hook(BaseHTTPRequestHandler):
    """Refuses the first request, and accepts the others."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, self.headers["content-type"], json.loads(body)))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.end_headers()
        for kind in KINDS:
            if not self.server.answers and json.loads(body)["notice"] == kind:
                (self.server.folder / kind).touch()

    def log_message(self, *_):
        pass


@pytest.fixture
def hook(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.requests, server.answers, server.folder = [], [], tmp_path
    yield server
    server.shutdown()


def serve(server, certificate=None):
    """Starts a server; returns its address."""
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"{'https' if certificate else 'http'}://localhost:{server.server_port}/hooks/SECRET"


def test_a_webhook_gets_the_same_and_is_asked_again(memlab, hook):
    """GIVEN a server that cannot accept the first request
    WHEN a program runs out of memory THEN memlab retries, and the server gets the notice while the program runs."""
    hook.answers = [503]
    run = record(memlab, "--webhook", serve(hook), "--notify-leak-steps", 100, waits_for=["out-of-memory"])
    assert run.code == 7 and "saw out-of-memory" in run.output, run.errors
    first, second = hook.requests
    assert first == second
    path, kind, notice = first
    assert (path, kind, notice["notice"], notice["bytes"]) == (
        "/hooks/SECRET",
        "application/json",
        "out-of-memory",
        64 << 30,
    )
    # The text that chats display.
    assert notice["message"] in notice["text"] and "program.py" in notice["text"]
    assert "webhook" not in run.errors


@pytest.mark.long
def test_a_webhook_over_https(memlab, hook, tmp_path):
    """GIVEN a server with a self-signed certificate WHEN the machine trusts it THEN it gets the notice; otherwise one line
    reports it, without the secret part of the address."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    both = tmp_path / "both.pem"
    made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(["openssl", *made, *named, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    options = ("--webhook", serve(hook, both), "--notify-leak-steps", 100)
    run = record(memlab, *options, waits_for=["out-of-memory"], env={"SSL_CERT_FILE": certificate})
    assert run.code == 7 and "saw out-of-memory" in run.output, run.errors
    assert [notice["notice"] for _, _, notice in hook.requests] == ["out-of-memory"]
    code, errors = record_until(memlab, "memlab: --webhook: localhost: ", "--force", *options)
    assert code == 7 and len(hook.requests) == 1
    assert "SECRET" not in errors


@pytest.mark.long
def test_a_webhook_that_nobody_answers(memlab):
    """GIVEN an address without a server WHEN a notice is sent THEN one line reports it, and the program's exit is
    unaffected."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # The port is taken, and refuses connections.
        port = nobody.getsockname()[1]
        options = ("--webhook", f"http://127.0.0.1:{port}/", "--notify-leak-steps", 100)
        code, _ = record_until(memlab, "memlab: --webhook: 127.0.0.1: ", *options)
    assert code == 7


def test_a_command_is_notified_under_the_dashboard(memlab):
    """GIVEN a program under the dashboard WHEN it runs out of memory
    THEN a command gets the notice, and its output is not on the screen."""
    script = memlab.folder / "program.py"
    script.write_text(dedent(PROGRAM))
    command = "echo SHOULD NOT BE SEEN; cat >> told; touch out-of-memory"
    options = ("-o", "t.jsonl", "--live", "--notify", command, "--notify-leak-steps", "100")
    wrapped = [memlab.simgpu, "--memory", "2GiB", memlab.command, "run", *options, "--", PYTHON, script, "out-of-memory"]
    environment = memlab.environment(TERM="xterm-256color", LC_ALL="C.UTF-8", COLUMNS="120", LINES="40")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(memlab.folder)
        os.execve(wrapped[0], [str(part) for part in wrapped], environment)
    screen, ended, until = b"", None, time.monotonic() + HANG_SECONDS
    while ended is None and time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # Its other end may be closed.
                screen += os.read(terminal, 1 << 16)
        # The dashboard stays after the program's end.
        if b"exit code 7" in screen or (memlab.folder / "told").exists():
            os.write(terminal, b"q")
        pid, status = os.waitpid(process, os.WNOHANG)
        ended = os.waitstatus_to_exitcode(status) if pid else None
        time.sleep(0.05)
    if ended is None:
        os.kill(process, signal.SIGKILL)
    assert ended == 7, screen[-2000:]
    _, count = told(memlab)
    assert count == {"out-of-memory": 1}
    assert b"SHOULD NOT BE SEEN" not in screen


def test_options_without_a_receiver_are_refused():
    for options, said in (
        (["--notify-free", "1GiB"], "--notify <CMD>|--webhook <URL>"),
        (["--webhook", "x"], "https://host"),
    ):
        done = subprocess.run([RELEASE / "memlab", "run", *options, "true"], capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr
