"""Prints the notes of a release from CHANGELOG.md: python release_notes.py v0.2.0. Refuses a tag that is not the version."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def notes(tag, changelog, version):
    """Text of the version's chapter."""
    if tag != f"v{version}":
        raise SystemExit(f"the tag {tag} is not the version of Cargo.toml, v{version}")
    heading = rf"^## \[?{re.escape(version)}\]?( - [^\n]*)?\n"
    chapter = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not chapter or not chapter[2].strip():
        raise SystemExit(f"CHANGELOG.md has no chapter '## {version} - DATE'")
    return chapter[2].strip() + "\n"


if __name__ == "__main__":
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    sys.stdout.write(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), version))
