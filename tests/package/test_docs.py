"""Links of the docs: to files that there are, and to headings as GitHub and mdBook name them."""

import re

import pytest
from conftest import ROOT

SITE = ROOT / "docs" / "site"
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "simgpu/README.md", "benches/RESULTS.md")]
    + [page for page in (ROOT / "docs").rglob("*.md") if SITE not in page.parents]
)


def text_of(page):
    """A page without code, in which what looks like a link is none."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:\A|\n\n)(?: {4}.*\n(?:\n(?= {4}))?)+", "\n\n", text)
    return text


def anchors(page):
    """The names of a page's headings."""
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
    # GIVEN the links of a page THEN the file is there, and a page has the heading
    for link in links(page):
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not place or place in set(anchors(target)), link


def test_every_page_is_in_the_site():
    # GIVEN the site's contents THEN they are the pages
    listed = re.findall(r"\]\((.*)\)", (SITE / "SUMMARY.md").read_text())
    assert sorted(ROOT / name for name in listed) == PAGES
