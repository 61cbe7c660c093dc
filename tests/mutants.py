#!/usr/bin/env python3
"""Changes the sources one small piece at a time, and lists the changes that no test notices: `make mutants`.

    tests/mutants.py [--since COMMIT] [--minutes 30] [--count N] [--seed N] [--long] [FILE…]

cargo-mutants makes the changes in Rust, cosmic-ray those in Python: in FILEs, or in the sources that differ from COMMIT. A
mutant runs the tests of its crate, then the Python tests that tests/covers.toml names for it; with --long their long tests
too. They run in target/mutants/tree, a worktree of HEAD with a separate build. Exit code 1: a mutant survived.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from difflib import unified_diff
from itertools import chain, zip_longest
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "target" / "mutants" / "tree"
VENV = ROOT / ".venv" / "bin" / "python"
# Time limit of a mutant that loops: ten times that of the largest crate's tests.
LIMIT_SECONDS = 1200
# Changes that tests can rarely notice: names of exceptions, decorators, types after a colon.
UNUSED_OPERATORS = ("ExceptionReplacer", "RemoveDecorator", "VariableReplacer", "VariableInserter", "BitOr_")


@dataclass(frozen=True)
class Mutant:
    """A source file with one change."""

    file: str
    name: str
    text: str

    def diff(self):
        before = (TREE / self.file).read_text().splitlines()
        lines = unified_diff(before, self.text.splitlines(), self.file, self.file, lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def run(*command, **options):
    options = {"cwd": TREE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False} | options
    return subprocess.run([str(part) for part in command], **options)


def output_of(*command, **options):
    return run(*command, stdout=subprocess.PIPE, stderr=None, text=True, check=True, **options).stdout


def crates():
    """The package name of each crate, by its folder."""
    found = json.loads(output_of("cargo", "metadata", "--no-deps", "--format-version", "1"))["packages"]
    return {str(Path(package["manifest_path"]).parent.relative_to(TREE)): package["name"] for package in found}


def sources_since(commit):
    files = output_of("git", "diff", "--name-only", "--diff-filter=d", commit, "HEAD").splitlines()
    return [file for file in files if is_source(file)]


def is_source(file):
    rust = file.endswith(".rs") and "/src/" in file and not file.startswith(("tests/", "simgpu/tests/", "benches/", "fuzz/"))
    return rust or (file.endswith(".py") and file.startswith(("python/memlab/", "interpose/src/python/")))


def rust_mutants(files):
    if not files:
        return
    options = [option for file in files for option in ("--file", file)]
    for found in json.loads(output_of("cargo", "mutants", "--list", "--json", *options)):
        lines = (TREE / found["file"]).read_text().split("\n")
        start, end = found["span"]["start"], found["span"]["end"]
        head = [*lines[: start["line"] - 1], lines[start["line"] - 1][: start["column"] - 1]]
        tail = [lines[end["line"] - 1][end["column"] - 1 :], *lines[end["line"] :]]
        text = "\n".join(head) + f"{found['replacement']} /* mutant */" + "\n".join(tail)
        yield Mutant(found["file"], found["name"], text)


def python_mutants(files):
    for file in files:
        code = (TREE / file).read_text()
        tree = get_ast(code)
        for name in cosmic_ray.plugins.operator_names():
            kind = cosmic_ray.plugins.get_operator(name)
            if kind.arguments() or any(unused in name for unused in UNUSED_OPERATORS):
                continue
            operator = kind()
            places = sum(1 for node in ast_nodes(tree) for _ in operator.mutation_positions(node))
            for place in range(places):
                yield Mutant(file, f"{file}: {name} {place}", mutate_code(code, kind(), place))


def drawn(mutants, seed):
    """All mutants in a random order that cycles through the files."""
    by_file = {}
    for mutant in mutants:
        by_file.setdefault(mutant.file, []).append(mutant)
    dice = random.Random(seed)
    rows = [dice.sample(of_file, len(of_file)) for of_file in dice.sample(list(by_file.values()), len(by_file))]
    return [mutant for mutant in chain(*zip_longest(*rows)) if mutant]


def prepare():
    """Creates a worktree of HEAD, with the packages of the tests and a copy of the build."""
    if not TREE.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(TREE)], cwd=ROOT, check=True)
        (TREE / ".venv").symlink_to(ROOT / ".venv")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    run("git", "checkout", "--quiet", "--force", head, check=True)
    build(check=True)


def build(check=False):
    """Builds all programs and the native module. Returns true on success."""
    done = run("cargo", "build", "--release", "--workspace", "--quiet", check=check)
    if not done.returncode:
        native = TREE / "python" / "memlab" / "_native.abi3.so"
        shutil.copy(TREE / "target" / "release" / "lib_native.so", f"{native}.next")
        os.replace(f"{native}.next", native)
    return not done.returncode


def pytest(files, *options):
    environment = os.environ | {"PYTHONPATH": str(TREE / "python")}
    command = [VENV, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", *options]
    return run(*command, *files, env=environment, timeout=LIMIT_SECONDS).returncode


def survives(mutant, packages, tests_of, *, long):
    """Runs the tests with a mutant in place: True if all pass, None if it does not compile."""
    path, rust = TREE / mutant.file, mutant.file.endswith(".rs")
    before = path.read_text()
    try:
        path.write_text(mutant.text)
        if rust:
            folder = max((folder for folder in packages if mutant.file.startswith(f"{folder}/")), key=len)
            if run("cargo", "check", "--release", "--package", packages[folder]).returncode:
                return None
            tested = run("cargo", "test", "--release", "--quiet", "--package", packages[folder], timeout=LIMIT_SECONDS)
            if tested.returncode or not build():
                return False
        files = tests_of(mutant.file)
        # 5: these files have no test of this tier.
        return not files or (pytest(files) in (0, 5) and (not long or pytest(files, "--long") in (0, 5)))
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--since", default="HEAD~1", metavar="COMMIT")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    import long as tiers

    prepare()
    covered = tiers.covering()

    def tests_of(source):
        return sorted({test for prefix, tests in covered.items() if f"{source}/".startswith(f"{prefix}/") for test in tests})

    files, packages = options.files or sources_since(options.since), crates()
    rust, python = ([file for file in files if file.endswith(end)] for end in (".rs", ".py"))
    mutants = drawn([*rust_mutants(rust), *python_mutants(python)], options.seed)[: options.count]
    print(f"{len(mutants)} mutants in {len(files)} files", flush=True)
    until, survivors = time.monotonic() + 60 * options.minutes, []
    for tried, mutant in enumerate(mutants):
        if time.monotonic() > until:
            print(f"{options.minutes:g} minutes are over: {len(mutants) - tried} mutants were not tried")
            break
        begun, outcome = time.monotonic(), survives(mutant, packages, tests_of, long=options.long)
        word = {True: "SURVIVED", False: "killed", None: "does not compile"}[outcome]
        print(f"{word:16} {time.monotonic() - begun:4.0f} s  {mutant.name}", flush=True)
        survivors += [mutant] if outcome else []
    for mutant in survivors:
        print(f"\n{mutant.name}\n{mutant.diff()}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
