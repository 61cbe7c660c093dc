"""Python stacks equal those of `sys._getframe` on every CPython found on the machine."""

import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

KNOWN = range(9, 15)


def interpreters():
    """One interpreter of each version: this one, those on the PATH, and pyenv's."""
    candidates = [sys.executable]
    candidates += filter(None, (shutil.which(f"python3.{minor}") for minor in range(6, 20)))
    candidates += glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python"))
    candidates += filter(None, [os.environ.get("MEMLAB_MORE_PYTHONS")])
    found = {}
    for candidate in candidates:
        asked = subprocess.run(
            [
                candidate,
                "-c",
                "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED'))",
            ],
            capture_output=True,
            text=True,
        )
        if asked.returncode == 0:
            major, minor, free_threaded = asked.stdout.split()
            if major == "3":
                found.setdefault((int(minor), free_threaded == "1"), candidate)
    return sorted(found.items())


def run(memlab, python, *arguments):
    environment = memlab.environment(LD_PRELOAD=memlab.library, MEMLAB_OUTPUT=memlab.folder / "walk.jsonl")
    done = subprocess.run([python, *arguments], env=environment, cwd=memlab.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(("version", "python"), interpreters(), ids=lambda value: str(value))
def test_stacks(memlab, version, python):
    # GIVEN an interpreter and a program that allocates from many stacks and threads
    minor, free_threaded = version
    errors = run(memlab, python, PROGRAMS / "walk.py", "expected.json")
    trace = Trace(memlab.folder / "walk.jsonl")
    events = [event for event in trace.events if event[0] == "a"]
    expected = json.loads((memlab.folder / "expected.json").read_text())
    assert {str(event[4]) for event in events} == expected.keys()
    if minor not in KNOWN or free_threaded:
        # THEN an unsupported version gives no stacks, and one warning
        assert all(event[6] == 0 for event in events)
        assert errors.count("memlab:") == 1 and "this memlab does not support Python" in errors
        assert len(trace.warnings) == 1
        return
    # THEN each stack equals the interpreter's, frame by frame
    assert errors == ""
    for event in events:
        theirs = [(os.path.join(memlab.folder, file), line, name) for file, line, name in expected[str(event[4])]]
        assert trace.stack(event[6]) == theirs
