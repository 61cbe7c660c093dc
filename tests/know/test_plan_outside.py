"""After the last recorded step, a planned program changes nothing outside its process."""

import json
import subprocess
import sys

from conftest import PYTHON, ROOT


def test_nothing_outside_of_the_process_changes(memlab):
    # GIVEN a program with files of a real training run, two of them open, a server and another process
    beside = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    fake = memlab.folder / "python-ld-touch"
    fake.write_text("#!/bin/sh\ntouch touched\n")
    fake.chmod(0o755)
    # WHEN it continues after the steps that `memlab plan` records
    program = ROOT / "tests/know/programs/outside.py"
    run = memlab.run(PYTHON, program, ROOT / "viewer/cli/src/recording", beside.pid, preload=False)
    assert run.code == 0, run.errors
    found = json.loads(run.output)
    # THEN other programs, connections and signals are refused
    refused = ("subprocess", "named as a compiler", "posix_spawn", "system", "tcp", "unix", "udp", "kill", "killpg")
    assert {name: found[name] for name in refused} == dict.fromkeys(refused, "PermissionError")
    assert found["fork and exec"] == "13"
    # AND so are Python functions that a library saved earlier; others do nothing
    assert (found["kept truncate"], found["kept remove"]) == ("PermissionError", "PermissionError")
    assert (found["truncate"], found["chmod"], found["log"]) == ("None", "None", "(4, None)")
    # AND an open file remains readable, and refuses writes
    assert (found["data"], found["data written"]) == (" of work", "OSError")
    # AND training can still use compilers, workers, and its own process
    assert (found["compiler"], found["pool"], found["own child"], found["asked"]) == ("0", "4", "-15", "None")
    # AND all files are unchanged
    assert set(found["left"].values()) == {"weeks of work"}
    assert not (memlab.folder / "touched").exists()
    assert beside.poll() is None
    beside.communicate(b"\n")
