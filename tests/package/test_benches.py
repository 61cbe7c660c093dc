"""The benchmarks of `make bench` start: their commands name what there is, and their programs find what they import."""

import json
import re
from collections import Counter

from conftest import ROOT

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


def test_every_example_has_a_name_of_its_own():
    # GIVEN the examples of all crates, of which `cargo run --example NAME` runs one; THEN no two have one name
    examples = [*ROOT.glob("*/examples/*.rs"), *ROOT.glob("*/*/examples/*.rs")]
    names = Counter(path.stem for path in examples)
    assert [name for name, count in names.items() if count > 1] == []
    # AND those that the Makefile and the results name are there
    named = {name for file in ("Makefile", "benches/RESULTS.md") for name in example_names((ROOT / file).read_text())}
    assert named - names.keys() == set()


def example_names(text):
    return re.findall(r"cargo run[^`\n]*--example (\w+)", text.replace("$(CARGO)", "cargo"))


def test_every_benchmark_finds_the_modules_of_this_repository(memlab):
    # GIVEN the programs that the Makefile runs; WHEN those are imported that can be, without a run
    programs = sorted(set(re.findall(r"benches/\w+\.py", (ROOT / "Makefile").read_text())))
    paths = [ROOT / program for program in programs if "if __name__ ==" in (ROOT / program).read_text()]
    assert ROOT / "benches" / "batch.py" in paths
    run = memlab.python("-c", IMPORTS, *paths, preload=False, env={"PYTHONPATH": ROOT / "python"})
    assert run.code == 0, run.errors
    # THEN only packages of others are missing, which some targets install
    own = {path.stem for folder in ("benches", "tests") for path in (ROOT / folder).rglob("*.py")}
    missing = json.loads(run.output.splitlines()[-1])
    assert {program: name for program, name in missing.items() if name in own} == {}
