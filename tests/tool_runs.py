"""Runs programs that use the tools of the Python package, with libmemlab.so preloaded and without."""

import json
import os
import textwrap

import pytest
from conftest import ROOT

# Preloaded, as under `memlab run`; and late, as in a notebook: the first tool loads the library.
START = pytest.mark.parametrize("preload", [True, False], ids=["preloaded", "late"])


def run_tool(memlab, program, preload=False, env=None, **options):
    """Runs a program that writes one JSON value to the file `result`; returns the value and the run."""
    script = memlab.folder / "program.py"
    script.write_text(textwrap.dedent(program))
    result = memlab.folder / "result"
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": ":".join(path for path in paths if path)} | (env or {})
    run = memlab.python(script, preload=preload, env=env, **options)
    assert run.code == 0, run.errors
    return (json.loads(result.read_text()) if result.exists() else None), run


def run_program(memlab, program, *arguments, **options):
    """Runs a program of `tests/programs` that writes one JSON value to the file `result`; returns the value."""
    run = memlab.python(program, *arguments, env={"PYTHONPATH": ROOT / "python"}, **options)
    assert run.code == 0, run.errors
    return json.loads((memlab.folder / "result").read_text())
