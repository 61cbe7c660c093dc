"""Runs tests of the suite that need neither a simulated failure nor a GPU of a certain size, on the real GPU."""

import os
import subprocess
import sys
from pathlib import Path

from harness import ROOT, TESTS, Skip

# Files of tests/, and the selection of their tests (`-k`).
CHOSEN = {
    "see/test_agent.py": "not out_of_memory",
    "see/test_holders.py": "",
    "see/test_kinds.py": "not missing_pytorch_function",
    "see/test_interception.py": "without_caching",
    "tools/test_tracker.py": "not two_devices and not without_a_gpu and not whole_card",
    "tools/test_reporter.py": "not without and not readme and not second_gpu and not keeps_nothing and not named_once",
    "tools/test_reporter_kinds.py": "",
    "tools/test_reporter_names.py": "",
    "tools/test_line_profiler.py": "not each_gpu and not without_a_gpu and not every_cpython",
    "move/test_courtesy.py": "",
    "see/test_gpu_time.py": "",
    "tools/test_pytest_plugin.py": "need_too_much or leave_memory",
    "jobs/test_parallel.py": "",
    "see/test_kv_caches.py": "",
    "know/test_graph_pools.py": "",
}
# Number of GPUs of the smallest test in files for several GPUs. Tests for more skip themselves.
GPUS = {"jobs/test_parallel.py": 2}


def check_file(harness, folder, file):
    """Failures of one test file."""
    if harness.simulated:
        return Skip("`make test` runs it on the simulated GPU")
    if harness.devices < GPUS.get(file, 1):
        return Skip(f"needs {GPUS[file]} GPUs, and the machine has {harness.devices}")
    environment = os.environ | {"MEMLAB_ON_GPU": "1", "PYTHONPATH": str(ROOT / "python")}
    environment |= {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # CPython 3.12 and newer warn about forks.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'pytest'}"]
    command += [str(TESTS / file), *(["-k", CHOSEN[file]] if CHOSEN[file] else [])]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=max(1, harness.left()), check=False
    )
    lines = done.stdout.splitlines()
    harness.note(f"tests of {file}", lines[-1] if lines else done.stderr[-500:])
    if done.returncode == 0:
        return []
    (harness.out / f"{Path(file).name}.txt").write_text(done.stdout + done.stderr)
    return [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))] or [done.stderr[-2000:]]
