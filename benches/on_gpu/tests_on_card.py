"""Runs tests of the suite that need neither a simulated failure nor a GPU of a certain size, on the real GPU."""

import os
import subprocess
import sys

from harness import ROOT, TESTS, Skip

# A file, and a selection of its tests.
CHOSEN = {
    "test_agent.py": "not out_of_memory",
    "test_kinds.py": "not missing_pytorch_function",
    "test_interception.py": "without_caching",
    "test_tracker.py": "not two_devices and not without_a_gpu",
    "test_reporter.py": "not without and not readme and not second_gpu and not keeps_nothing and not named_once",
    "test_reporter_kinds.py": "",
    "test_reporter_names.py": "",
    "test_line_profiler.py": "not each_gpu and not without_a_gpu and not every_cpython",
    "test_courtesy.py": "",
    "test_gpu_time.py": "",
    "test_pytest_plugin.py": "need_too_much or leave_memory",
    "test_parallel.py": "",
    "test_kv_caches.py": "",
}
# Of those that run on several GPUs, on how many the smallest does. Tests for more skip themselves.
GPUS = {"test_parallel.py": 2}


def check_file(harness, folder, file):
    """The failures of one test file."""
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
    (harness.out / f"{file}.txt").write_text(done.stdout + done.stderr)
    return [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))] or [done.stderr[-2000:]]
