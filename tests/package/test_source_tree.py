"""The package in a source tree, without an installation: PYTHONPATH=python."""

import subprocess
import sys

from conftest import ROOT


def test_the_command(memlab):
    # GIVEN the package in a source tree, whose program `make` has built
    # WHEN the module is run, THEN it runs the command
    environment = memlab.environment(PYTHONPATH=ROOT / "python")
    for arguments in (["--version"], ["--help"]):
        by_module = subprocess.run(
            [sys.executable, "-m", "memlab", *arguments], capture_output=True, text=True, env=environment, cwd=memlab.folder
        )
        by_itself = subprocess.run([memlab.command, *arguments], capture_output=True, text=True, env=environment)
        assert (by_module.returncode, by_module.stdout) == (0, by_itself.stdout), by_module.stderr


def test_the_command_records(memlab):
    # GIVEN a program; WHEN `python -m memlab run` starts it
    code = "import torch; held = torch.ones(1 << 20, device='cuda')"
    command = ("-m", "memlab", "run", "--no-live", "-o", "out.jsonl", "--", sys.executable, "-c", code)
    run = memlab.python(*command, preload=False, env={"PYTHONPATH": ROOT / "python"})
    # THEN it writes a trace
    assert run.code == 0, run.errors
    (device,) = memlab.report(run.trace)["devices"]
    assert device["peak_allocated_bytes"] == 4 << 20
