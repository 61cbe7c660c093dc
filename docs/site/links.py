"""Checks the site that mdBook has made: python links.py FOLDER. Each link within it has to lead to a file and a place."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the places in it."""

    def __init__(self, file):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.places |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def broken(folder):
    """Page and link, of each that leads nowhere."""
    pages = {file.resolve(): Page(file) for file in folder.rglob("*.html") if file.name not in ("404.html", "toc.html")}
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            places = pages[target].places if place and target in pages else {place}
            if not target.exists() or place not in places:
                yield file.relative_to(folder.resolve()), link


if __name__ == "__main__":
    wrong = [f"{page}: {link}" for page, link in broken(Path(sys.argv[1]))]
    sys.exit("\n".join(["links that lead nowhere:", *wrong]) if wrong else 0)
