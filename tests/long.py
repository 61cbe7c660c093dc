#!/usr/bin/env python3
"""Runs the long tests, and records in tests/long-passed the commit on which each file of them last passed.

    tests/long.py                                all files, and an old PyTorch (`make test-long`)
    tests/long.py --changed                      the files whose sources or helpers changed since they passed
    tests/long.py --changed --budget-minutes 4   those of them that have passed and fit, the oldest pass first (`.ci/run`)

tests/covers.toml names the tests of each source.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PASSED = TESTS / "long-passed"
VENV = ROOT / ".venv" / "bin" / "python"
REPORT = ROOT / "target" / "long.xml"
WORKERS = 2
# Files that need dist/memlab-*.whl.
OF_THE_WHEEL = {"package/test_shells.py", "package/test_wheel.py"}
# Not a file: the tests that `tests/versions.sh --old` runs with an old PyTorch.
OLD_PYTORCH = "versions.sh"
OLD_PYTORCH_COVERS = ["interpose", "trace", "tests/versions.sh", "tests/see", "python/memlab/compat/_tensors"]


@dataclass(frozen=True)
class Pass:
    """A test file's last pass: the commit, the day, and the processor seconds of its long tests."""

    commit: str
    day: str
    seconds: int


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def read_passes():
    """Last pass of each file, by its path below tests/."""
    lines = PASSED.read_text().splitlines() if PASSED.exists() else []
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return {file: Pass(commit, day, int(seconds)) for file, commit, day, seconds in rows}


def write_passes(passes):
    rows = (f"{file} {last.commit} {last.day} {last.seconds}\n" for file, last in sorted(passes.items()))
    title = "# Test file, commit and day of the last pass, processor seconds: `make test-long` writes this.\n"
    PASSED.write_text(title + "".join(rows))


def covering():
    """Test files of each source, as covers.toml lists them."""
    covers = tomllib.loads((TESTS / "covers.toml").read_text())
    expanded = {source: [files_of(pattern) for pattern in patterns] for source, patterns in covers.items()}
    return {source: sorted({f"tests/{file}" for some in files for file in some}) for source, files in expanded.items()}


def files_of(pattern):
    """Test files below tests/ that a folder or a glob names."""
    found = (TESTS / pattern).glob("test_*.py") if (TESTS / pattern).is_dir() else TESTS.glob(pattern)
    return [str(file.relative_to(TESTS)) for file in found]


def sources_of():
    """Sources of each test file, by its path below tests/: those in covers.toml, the file, and its folder's helpers."""
    sources = {}
    for source, files in covering().items():
        for file in files:
            sources.setdefault(file.removeprefix("tests/"), []).append(source)
    for file, covered in sources.items():
        folder = Path("tests", file).parent
        helpers = [path for path in git("ls-files", str(folder)).split() if not Path(path).name.startswith("test_")]
        covered += [f"tests/{file}", "tests/conftest.py", *helpers]
    return sources | {OLD_PYTORCH: OLD_PYTORCH_COVERS}


def has_changed(sources, commit):
    """Compares sources with those of a commit. An unknown commit counts as a change."""
    known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        return True
    differs = subprocess.run(["git", "diff", "--quiet", commit, "--", *sources], cwd=ROOT, check=False)
    return differs.returncode != 0


def long_files():
    """Test files with long tests, without OLD_PYTORCH."""
    command = [VENV, "-m", "pytest", "-q", "--collect-only", "--long", TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"tests/long.py: the long tests cannot be collected:\n{done.stdout}{done.stderr}")
    return sorted({line.split("::")[0].removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line})


def environment():
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": ":".join(path for path in paths if path)}


def chosen_within(files, passes, budget_minutes):
    """Files whose recorded times fit together in the budget, those with the oldest pass first."""
    left = budget_minutes * 60 * WORKERS
    chosen = []
    for file in sorted(set(files) & passes.keys(), key=lambda file: (passes[file].day, file)):
        if passes[file].seconds <= left:
            chosen.append(file)
            left -= passes[file].seconds
    return chosen


def run_files(files):
    """Runs the long tests of some files. Returns the seconds of each file without a failure, and the exit code."""
    REPORT.unlink(missing_ok=True)
    command = [VENV, "-m", "pytest", "-q", "-n", str(WORKERS), "--dist", "loadgroup", "--durations", "15", "--long"]
    command += ["--junitxml", REPORT, *(f"tests/{file}" for file in files)]
    code = subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode
    seconds = dict.fromkeys(files, 0.0)
    failed = set()
    for case in ElementTree.parse(REPORT).iter("testcase"):
        file = "/".join(case.get("classname").split(".")[1:3]) + ".py"
        seconds[file] = seconds.get(file, 0.0) + float(case.get("time"))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(file)
    return {file: took for file, took in seconds.items() if file not in failed}, code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--budget-minutes", type=float)
    options = parser.parse_args()
    passes, sources = read_passes(), sources_of()
    files = [*long_files(), OLD_PYTORCH]
    if options.changed:
        files = [file for file in files if file not in passes or has_changed(sources[file], passes[file].commit)]
    chosen = files if options.budget_minutes is None else chosen_within(files, passes, options.budget_minutes)
    left_out = [file for file in files if file not in chosen]
    if left_out:
        print(f"memlab: `make test-long` has {len(left_out)} more files whose sources have changed: {' '.join(left_out)}")
    code, took = 0, {}
    building = 0.0
    if OF_THE_WHEEL & set(chosen):
        begun = time.monotonic()
        subprocess.run(["make", "wheel"], cwd=ROOT, check=True)
        building = (time.monotonic() - begun) * WORKERS
    if tests := [file for file in chosen if file != OLD_PYTORCH]:
        took, code = run_files(tests)
        took |= {file: took[file] + building for file in OF_THE_WHEEL & set(took)}
    if OLD_PYTORCH in chosen:
        begun = time.monotonic()
        failed = subprocess.run([TESTS / OLD_PYTORCH, "--old"], cwd=ROOT, check=False).returncode
        code = code or failed
        took |= {} if failed else {OLD_PYTORCH: (time.monotonic() - begun) * WORKERS}
    commit, today = git("rev-parse", "--short=8", "HEAD").strip(), date.today().isoformat()
    changes = git("status", "--porcelain", "--untracked-files=no").splitlines()
    if any(not line.endswith(PASSED.name) for line in changes):
        print("memlab: the passes are not recorded in tests/long-passed: the tree has uncommitted changes")
    elif took:
        write_passes(passes | {file: Pass(commit, today, round(seconds)) for file, seconds in took.items()})
    sys.exit(code)


if __name__ == "__main__":
    main()
