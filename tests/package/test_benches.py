"""The benchmarks of `make bench` start, and their tables in RESULTS.md match their history."""

import json
import re
import subprocess
import sys
from collections import Counter

from conftest import ROOT

sys.path.insert(0, str(ROOT / "benches"))
import history
from run import BENCHES, FIGURE

COMMANDS = "\n".join(bench.commands for bench in BENCHES.values())

IMPORTS = """
import json, runpy, sys
missing = {}
for path in sys.argv[1:]:
    before, sys.path[0] = list(sys.path), path.rpartition("/")[0]
    try:
        runpy.run_path(path, run_name="imported")
    except ModuleNotFoundError as error:
        missing[path] = error.name
    sys.path[:] = before
print(json.dumps(missing))
"""


def test_examples_have_unique_names():
    # GIVEN the examples of all crates, which `cargo run --example NAME` selects by name; THEN no two share a name
    examples = [*ROOT.glob("*/examples/*.rs"), *ROOT.glob("*/*/examples/*.rs")]
    names = Counter(path.stem for path in examples)
    assert [name for name, count in names.items() if count > 1] == []
    # AND the examples that the benchmarks and the results name exist
    named = set(re.findall(r"cargo run[^`\n]*--example (\w+)", COMMANDS + (ROOT / "benches" / "RESULTS.md").read_text()))
    assert named - names.keys() == set()
    assert "replay_bench" in named


def test_every_benchmark_finds_its_environment():
    # GIVEN the build targets of benchmarks; THEN make has a rule for each
    needs = sorted({need for bench in BENCHES.values() for need in bench.needs})
    done = subprocess.run(["make", "--dry-run", *needs], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_mention_names_a_benchmark():
    # GIVEN the texts; WHEN they name `make bench BENCH=…` THEN that benchmark exists
    texts = [path for pattern in ("*.md", "docs/**/*.md", "benches/**/*.*") for path in ROOT.glob(pattern)]
    found = {name for path in texts if path.suffix in (".md", ".py", ".c") for name in mentions(path.read_text())}
    assert found - BENCHES.keys() == set()
    assert "append" in found


def mentions(text):
    return re.findall(r"BENCH=(\w+)", text)


def test_the_tables_of_the_results_are_those_of_the_history():
    # GIVEN the history; WHEN tables and plot are generated from it THEN they equal the committed ones: benches/history.py
    rows = history.read()
    text = history.RESULTS.read_text()
    assert history.with_tables(text, rows) == text
    assert history.plot(rows) == history.PLOT.read_text()
    # AND each benchmark with a history has a table and a place in the plot
    benches = {row.bench for row in rows}
    assert benches == {bench for _, bench, _, _ in history.TABLE.findall(text)}
    assert benches == history.PLOTTED.keys() <= BENCHES.keys()


def test_a_figure_is_a_line_with_a_name_a_value_and_a_unit():
    assert FIGURE.fullmatch("= a launch, --offload: 20.7 ns").groups() == ("a launch, --offload", "20.7", "ns")
    assert FIGURE.fullmatch("= ratio: -0.03").groups() == ("ratio", "-0.03", None)
    assert FIGURE.fullmatch("append: 81 ns an event") is None


def test_every_benchmark_finds_the_modules_of_this_repository(memlab):
    # GIVEN the programs that benchmarks run; WHEN each importable one is imported, without a run
    programs = sorted(set(re.findall(r"benches/\w+\.py", COMMANDS)))
    paths = [ROOT / program for program in programs if "if __name__ ==" in (ROOT / program).read_text()]
    assert ROOT / "benches" / "batch.py" in paths
    run = memlab.python("-c", IMPORTS, *paths, preload=False, env={"PYTHONPATH": ROOT / "python"})
    assert run.code == 0, run.errors
    # THEN only third-party packages are missing, which some targets install
    own = {path.stem for folder in ("benches", "tests") for path in (ROOT / folder).rglob("*.py")}
    missing = json.loads(run.output.splitlines()[-1])
    assert {program: name for program, name in missing.items() if name in own} == {}
