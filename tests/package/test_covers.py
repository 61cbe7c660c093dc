"""tests/covers.toml names all sources and reaches all test files."""

import sys

import tomllib
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests"))
import long

COVERS = tomllib.loads((ROOT / "tests" / "covers.toml").read_text())


def test_every_crate_and_every_module_is_named():
    # GIVEN the crates of the workspace and the modules of the package
    crates = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    folders = {crate if crate in COVERS else crate.split("/")[0] for crate in crates if not crate.startswith("tests/")} - {
        "python"
    }
    package = ROOT / "python" / "memlab"
    # `compat` is many tools, each with its tests. A folder without a source file remains from another commit.
    paths = [path for folder in (package, package / "compat") for path in folder.iterdir() if path.name != "compat"]
    modules = {str(path.relative_to(ROOT)) for path in paths if path.suffix == ".py" or any(path.glob("*.py"))}
    # THEN the table names each, and no missing one
    assert (folders | modules | {"python/src"}) - COVERS.keys() == set()
    assert [source for source in COVERS if not (ROOT / source).exists()] == []


def test_every_test_file_is_reached_and_every_pattern_reaches_one():
    # GIVEN the test files; THEN a source reaches each, and no pattern is out of date
    reached = {file for files in long.covering().values() for file in files}
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/test_*.py")}
    assert written - reached - {"tests/package/test_covers.py", "tests/package/test_map.py"} == set()
    assert [pattern for patterns in COVERS.values() for pattern in patterns if not long.files_of(pattern)] == []
