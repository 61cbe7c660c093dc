#!/usr/bin/env python3
"""Measures which lines the tests run, and writes docs/coverage.md: `make coverage`.

    tests/measure_coverage.py [--crates CRATE…] [--tests PATH…]

cargo-llvm-cov counts Rust lines in the Rust tests and in the programs that the Python tests start, coverage.py counts Python
lines in pytest and in those programs. They run in target/coverage/tree, a worktree of HEAD with an instrumented build. With
options, only the tests of CRATEs and the Python tests PATHs run, and the tables are printed. Lines of a failed test count.
"""

import argparse
import json
import os
import shutil
import subprocess
from collections import defaultdict
from datetime import date
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "target" / "coverage" / "tree"
DATA = ROOT / "target" / "coverage" / "data"
PYTHON = ROOT / "target" / "coverage-venv" / "bin" / "python"
PAGE = ROOT / "docs" / "coverage.md"
PACKAGE = "python/memlab"
# Number of files that all processes write their counts into: one file per process would take gigabytes.
PROFILES = "memlab-%8m.profraw"
# Programs end in every way, and run in separate folders.
SETTINGS = f"""[run]
parallel = true
patch = subprocess, fork, _exit, execv
source = {TREE / PACKAGE}
data_file = {DATA / "python"}
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""
SETTINGS_OPTION = f"--rcfile={DATA / 'settings'}"


def run(*command, check=True, **options):
    return subprocess.run([str(part) for part in command], cwd=TREE, check=check, **options)


def prepare():
    """Creates a worktree of HEAD with the packages of the tests, and no data of earlier runs."""
    if not TREE.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", TREE], cwd=ROOT, check=True)
        (TREE / ".venv").symlink_to(ROOT / ".venv")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    run("git", "checkout", "--quiet", "--force", head)
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    (DATA / "settings").write_text(SETTINGS)
    return head[:8]


def instrumented():
    """The environment in which cargo builds programs that count their lines."""
    command = f'export LLVM_PROFILE_FILE_NAME={PROFILES} && eval "$(cargo llvm-cov show-env --sh)" && env -0'
    shown = run("bash", "-c", command, stdout=subprocess.PIPE, text=True).stdout
    return dict(pair.split("=", 1) for pair in shown.split("\0") if pair)


def run_rust_tests(environment, crates):
    packages = [option for crate in crates for option in ("--package", crate)] or ["--workspace"]
    run("cargo", "test", "--release", "--quiet", "--no-fail-fast", *packages, env=environment, check=False)


def run_python_tests(environment, tests):
    run("cargo", "build", "--release", "--workspace", "--quiet", env=environment)
    shutil.copy(TREE / "target" / "release" / "lib_native.so", TREE / PACKAGE / "_native.abi3.so")
    environment = environment | {"PYTHONPATH": str(TREE / "python")}
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", *tests]
    run(PYTHON, "-m", "coverage", "run", SETTINGS_OPTION, *pytest, env=environment, check=False)


def rust_lines(environment):
    """Covered lines and all lines of each source file."""
    command = ["cargo", "llvm-cov", "report", "--release", "--json", "--summary-only"]
    found = json.loads(run(*command, env=environment, capture_output=True, text=True).stdout)
    for file in found["data"][0]["files"]:
        yield file["filename"], file["summary"]["lines"]["covered"], file["summary"]["lines"]["count"]


def python_lines():
    run(PYTHON, "-m", "coverage", "combine", "--quiet", SETTINGS_OPTION)
    run(PYTHON, "-m", "coverage", "json", "--quiet", SETTINGS_OPTION, "-o", DATA / "python.json")
    for file, found in json.loads((DATA / "python.json").read_text())["files"].items():
        yield file, found["summary"]["covered_lines"], found["summary"]["num_statements"]


def by_folder(lines, folders):
    """Sums of the files of each folder. A file counts in its longest matching folder; other files do not count."""
    sums = defaultdict(lambda: [0, 0])
    for file, covered, count in lines:
        path = os.path.relpath(TREE / file, TREE)
        fitting = [folder for folder in folders if path.startswith(f"{folder}/")]
        if fitting and "/tests/" not in path and "/examples/" not in path:
            total = sums[max(fitting, key=len)]
            total[0] += covered
            total[1] += count
    return dict(sorted(sums.items()))


def table(title, sums):
    rows = [*sums.items(), ("together", [sum(column) for column in zip(*sums.values(), strict=True)])]
    lines = [f"| {title} | lines | run by tests | |", "|---|---|---|---|"]
    lines += [
        f"| `{folder}` | {count:,} | {covered:,} | {100 * covered / count:.0f} % |"
        for folder, (covered, count) in rows
        if count
    ]
    return "\n".join(lines).replace("`together`", "together")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crates", nargs="+", default=[])
    parser.add_argument("--tests", nargs="+", default=[])
    options = parser.parse_args()
    is_whole = not (options.crates or options.tests)
    commit, environment = prepare(), instrumented()
    run("cargo", "llvm-cov", "clean", "--profraw-only", env=environment)
    tables = []
    if options.crates or is_whole:
        run_rust_tests(environment, options.crates)
    if options.tests or is_whole:
        run_python_tests(environment, options.tests or ["tests"])
        folders = [PACKAGE, *(f"{PACKAGE}/{path.name}" for path in (TREE / PACKAGE).iterdir() if path.is_dir())]
        tables.append(table("folder of the package", by_folder(python_lines(), folders)))
    crates = tomllib.loads((TREE / "Cargo.toml").read_text())["workspace"]["members"]
    rust = by_folder(rust_lines(environment), [crate for crate in crates if not crate.startswith("tests/")])
    tables.insert(0, table("crate", rust))
    if is_whole:
        head = PAGE.read_text().split("\n## ")[0]
        PAGE.write_text("\n\n".join([f"{head}\n## {date.today().isoformat()}, commit {commit}", *tables]) + "\n")
    else:
        print("\n\n".join(tables))


if __name__ == "__main__":
    main()
