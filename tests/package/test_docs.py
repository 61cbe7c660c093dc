"""Links of the docs point to existing files, and to headings as GitHub and mdBook name them. Documented figures equal the
commands' output."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON, ROOT

SITE = ROOT / "docs" / "site"
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "simgpu/README.md", "benches/RESULTS.md")]
    + [page for page in (ROOT / "docs").rglob("*.md") if SITE not in page.parents]
)


def text_of(page):
    """A page without code, where text that looks like a link is not one."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:\A|\n\n)(?: {4}.*\n(?:\n(?= {4}))?)+", "\n\n", text)
    return text


def anchors(page):
    """Anchors of a page's headings."""
    found = {}
    for heading in re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip()
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        yield f"{name}-{count}" if count else name


def links(page):
    text = re.sub(r"`[^`]*`", "`", text_of(page))
    for target in re.findall(r"\]\(([^)\s]*)\)", text):
        if not re.match(r"\w+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    # GIVEN the links of a page THEN the file exists, and a page has the heading
    for link in links(page):
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not place or place in set(anchors(target)), link


def test_no_page_is_long():
    # GIVEN the pages of the guide and the README; THEN each can be read in one sitting
    lengths = {page.name: page.read_text().count("\n") for page in (ROOT / "docs").glob("*.md")}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}
    assert (ROOT / "README.md").read_text().count("\n") <= 150


def test_every_page_is_in_the_site():
    # GIVEN the site's contents THEN they list exactly the pages
    listed = re.findall(r"\]\((.*)\)", (SITE / "SUMMARY.md").read_text())
    assert sorted(ROOT / name for name in listed) == PAGES


# Documented commands whose output is memory on the simulated GPU and does not depend on the machine.
REPEATABLE = ("memlab plan --card a100-40gb", "python examples/plan_gpt.py", "memlab simulate --card a100-40gb")


def documented_outputs():
    """Repeatable commands of all pages, and their documented output lines."""
    for page in PAGES:
        for found in re.finditer(r"(?m)^    \$ (.*)\n((?:    .+\n|\n(?= {4}))+)", page.read_text()):
            if found[1].startswith(REPEATABLE):
                lines = [line.strip() for line in found[2].splitlines() if line.strip() not in ("", "…")]
                yield pytest.param(found[1], lines, id=f"{page.name}: {found[1][:30]}")


@pytest.mark.long
@pytest.mark.parametrize("command, lines", list(documented_outputs()))
def test_commands_print_the_documented_figures(memlab, command, lines):
    # GIVEN a documented command and its output; WHEN it runs
    programs = [str(memlab.command.parent), str(Path(PYTHON).parent), os.environ["PATH"]]
    env = memlab.environment(PATH=":".join(programs), PYTHONPATH=ROOT / "python")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=env)
    # THEN it prints these lines
    assert done.returncode == 0, done.stderr
    printed = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in lines if line not in printed] == []
