"""The control socket answers every client, whatever other clients do."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import control
import pytest
from conftest import Memlab
from control import connected

# Starts memlab's recorder and its control thread with a first event, and waits; without PyTorch.
PROGRAM = """
import ctypes, os
report = ctypes.CDLL(os.environ["LD_PRELOAD"])._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
report.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint16]
report(8, 512, 0, 0, 1)
"""
WAIT = """
print("ready", flush=True)
input()
"""
# A child without exec, like a worker of a data loader, that outlives the process.
FORK = """
begun, begins = os.pipe()
child = os.fork()
if not child:
    os.write(begins, b"1")
    os.read(0, 1)
    os._exit(0)
os.read(begun, 1)
"""


@pytest.fixture(autouse=True)
def sockets_of_this_test(monkeypatch):
    """Gives each test a folder for sockets. The path is short because socket names are limited."""
    with tempfile.TemporaryDirectory(prefix="memlab-test-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def start(memlab, program):
    environment = memlab.environment(LD_PRELOAD=Memlab.library)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        cwd=memlab.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    memlab.started.append(process)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def traced(memlab):
    process = start(memlab, PROGRAM + WAIT)
    yield process
    process.communicate("\n")
    assert process.returncode == 0


def sockets_of(pid):
    found = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # The process has closed it.
            found += os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:")
    return found


def test_two_thousand_idle_clients_cause_no_delay(traced):
    # GIVEN two thousand connected clients that do not finish a request
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    others = []
    try:
        for number in range(2000):
            others.append(connected(traced.pid))
            if number % 2:
                with contextlib.suppress(BrokenPipeError):  # The process drops clients after 5 seconds.
                    others[-1].sendall(b'{"command"')
        # WHEN another client asks THEN its answer does not wait for them (one by one, each would take its deadline)
        assert control.ask(traced.pid, command="status")["pid"] == traced.pid
        # AND they do not use up the program's descriptors
        assert sockets_of(traced.pid) < 100
    finally:
        for other in others:
            other.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_slow_client_is_answered_when_its_request_is_complete(traced):
    answer = ""
    while not answer:  # The process drops clients after 5 seconds.
        with connected(traced.pid) as slow, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # GIVEN a client that has sent half of its request
            slow.sendall(b'{"command"')
            # WHEN another client asks THEN it is answered first
            assert control.ask(traced.pid, command="status")["ok"]
            # AND the first is answered as soon as its request is complete
            slow.sendall(b': "status"}\n')
            answer = slow.makefile().readline()
    assert json.loads(answer)["pid"] == traced.pid


def test_the_trace_mapping_ends_with_the_file(memlab, traced):
    # GIVEN a process that writes a trace WHEN its mappings are read, as valgrind does at the end
    (trace,) = memlab.folder.glob("*.jsonl")
    size = 0
    for line in Path(f"/proc/{traced.pid}/maps").read_text().splitlines():
        addresses, permissions, *_, name = line.split(maxsplit=5)
        if name == str(trace) and "r" in permissions:
            first, last = (int(address, 16) for address in addresses.split("-"))
            size += last - first
    # THEN every mapped page is inside the file
    assert 0 < size <= trace.stat().st_size


def ps(memlab):
    done = subprocess.run([memlab.command, "ps"], capture_output=True, text=True, env=memlab.environment(), check=True)
    return done.stdout


def test_a_stopped_process_is_listed_with_a_remedy(memlab, traced):
    # GIVEN a process that does not answer because it is stopped
    traced.send_signal(signal.SIGSTOP)
    os.waitpid(traced.pid, os.WUNTRACED)
    try:
        # WHEN processes are listed THEN the list gives the reason, and how to continue or kill the process
        text = ps(memlab)
        assert f"process {traced.pid} does not answer: it is stopped: `kill -CONT {traced.pid}` continues it" in text
        (row,) = [line for line in text.splitlines() if line.split()[:1] == [str(traced.pid)]]
        assert "does not answer" in row and "python" in row
    finally:
        traced.send_signal(signal.SIGCONT)


def test_the_cards_of_the_machine_are_listed(memlab):
    # GIVEN a machine with two cards, and a program that has memory on the first
    program = "import torch, subprocess, sys\nkept = torch.ones(1 << 20, device='cuda')\nsubprocess.run(sys.argv[1:])"
    run = [memlab.command, "simulate", "--devices", "2", "--", sys.executable, "-c", program, memlab.command, "ps"]
    environment = memlab.environment()
    listed = subprocess.run([*run, "--json"], capture_output=True, text=True, env=environment, check=True)
    # THEN each has its load, temperature, power and memory, as NVML reports them
    first, second = json.loads(listed.stdout)["cards"]
    assert (first["index"], second["index"], first["busy_percent"], first["celsius"], first["watts"]) == (0, 1, 0, 30, 70)
    # AND its processes
    assert [process["bytes"] for process in first["processes"]] == [first["used_bytes"]] and first["used_bytes"] > 0
    assert second["processes"] == [] and second["used_bytes"] == 0


def test_a_dead_process_is_not_listed_although_its_child_is_alive(memlab):
    # GIVEN a process that was killed, and a child of it that is still alive
    process = start(memlab, PROGRAM + WAIT + FORK + WAIT)
    assert control.ask(process.pid, command="status")["ok"]
    path = control.path_of(process.pid)
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    # THEN the child does not accept connections in its place
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(control.PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            client.connect(str(path))
    # AND it is not listed
    assert str(process.pid) not in [line.split()[0] for line in ps(memlab).splitlines() if line]
    assert not path.exists()
    process.stdin.close()
