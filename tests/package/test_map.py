"""The table of CONTRIBUTING.md lists every folder, and no deleted folder."""

import re

import tomllib
from conftest import ROOT

MAP = (ROOT / "CONTRIBUTING.md").read_text().split("## Repository layout")[1].split("## Where to start")[0]
FOLDERS = {
    folder.rstrip("/")
    for row in MAP.splitlines()
    if row.startswith("| `")
    for folder in re.findall(r"`([^`]+/)`", row.split("|")[1])
}


def test_every_folder_is_on_the_map():
    # GIVEN the crates, the folders of the package and those of the top level
    crates = set(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"])
    crates -= {crate for crate in crates if crate.startswith(("simgpu/", "tests/"))}
    package = {
        f"python/memlab/{path.name}"
        for path in (ROOT / "python" / "memlab").iterdir()
        if list(path.glob("*.py")) and path.is_dir()
    }
    tops = {path.split("/")[0] for path in crates} | {"tests", "benches", "fuzz", "examples", "docs", "simgpu"}
    # THEN the table names each, except `viewer`, whose crates are named one by one
    assert (crates | package | tops) - FOLDERS - {"viewer"} == set()
    # AND every named folder exists
    assert [folder for folder in FOLDERS if not (ROOT / folder).is_dir()] == []


def test_every_file_that_the_table_names_is_there():
    # GIVEN the rows; WHEN they name a path in backticks THEN it is below the row's folder
    missing = []
    for row in (row for row in MAP.splitlines() if row.startswith("| `")):
        _, folders, answers, _ = row.split("|")
        roots = [ROOT / folder for folder in re.findall(r"`([^`]+/)`", folders)]
        for path in re.findall(r"`([\w/]+(?:\.rs|\.py|/))`", answers):
            places = [place / path for root in roots for place in (root, root / "src")] + [ROOT / path]
            if not any(place.exists() for place in places):
                missing.append((folders.strip(), path))
    assert missing == []
