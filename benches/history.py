#!/usr/bin/env python3
"""The history of the benchmarks: benches/history.csv, its tables in benches/RESULTS.md, and its plot, benches/history.svg.

    benches/history.py       writes the tables and the plot again

`benches/run.py --record` adds figures, one row each. A run is a date, a commit and a machine. In RESULTS.md
`<!-- history: BENCH PATTERN -->` begins a table of the last runs of BENCH, with the figures whose names start with a match
of PATTERN. `<!-- end of history -->` ends it.
"""

import csv
import re
import subprocess
from datetime import date
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "benches" / "history.csv"
RESULTS = ROOT / "benches" / "RESULTS.md"
PLOT = ROOT / "benches" / "history.svg"
TABLE = re.compile(r"(<!-- history: (\w+) ?(.*?) -->\n)(?s:.*?)(<!-- end of history -->)")
# Columns of a table.
RUNS = 4

# Plotted figure of each benchmark.
PLOTTED = {
    "overhead": "shallow, ratio",
    "append": "1 thread",
    "cold": "256 KiB read before, allocated",
    "inside": "a step, added",
    "compiling": "ratio",
    "replay": "an event",
    "jobs": "dashboard, the ranks, share of a core",
    "viewer": "finished trace, overview, opened",
    "tools": "tensors, to a file, ratio",
    "feed": "tokens, 2 workers, processes to DataLoader",
    "gate": "the gate adds",
    "schedule": "a unit, all resident",
}
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
COLUMNS, WIDTH, HEIGHT, MARGIN = 3, 320, 170, 40
# With more points than this, only the first and the last have labels.
LABELS = 7


class Row(NamedTuple):
    """A figure of one run. `driver` is empty without a GPU, `unit` is empty for a ratio."""

    date: str
    commit: str
    machine: str
    driver: str
    bench: str
    figure: str
    value: str
    unit: str

    @property
    def run(self):
        return self[:4]


def read():
    with HISTORY.open(newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def machine():
    """The card and its driver, or the processor and no driver."""
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
        card, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
        return card, driver
    except (OSError, subprocess.CalledProcessError):
        processors = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        return f"{processors[0].replace('(R)', '').strip()}, {len(processors)} cores", ""


def commit():
    """Commit of the tree, with a `+` if files have changed since."""
    describe = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def add(commit, bench, figures):
    """Adds the figures of a run: value and unit by name."""
    today = date.today().isoformat()
    with HISTORY.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows((today, commit, *machine(), bench, name, value, unit) for name, (value, unit) in figures.items())


def table(rows):
    """Figures of one benchmark as Markdown, with a column for each of the last runs."""
    runs = list(dict.fromkeys(row.run for row in rows))[-RUNS:]
    cells = {(row.figure, row.run): f"{row.value} {row.unit}".strip() for row in rows}
    heads = [", ".join(filter(None, (day, f"`{commit}`", name, driver))) for day, commit, name, driver in runs]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(runs) + 1) + "|"]
    for figure in dict.fromkeys(row.figure for row in rows if row.run in runs):
        lines.append(f"| {figure} | {' | '.join(cells.get((figure, run), '') for run in runs)} |")
    return "\n".join(lines) + "\n"


def with_tables(text, rows):
    """RESULTS.md with its tables of the history."""

    def filled(found):
        begin, bench, pattern, end = found.groups()
        return begin + table([row for row in rows if row.bench == bench and re.match(pattern, row.figure)]) + end

    return TABLE.sub(filled, text)


def panel(title, rows, colors):
    """SVG of one figure over its runs: points from zero up, and a line for each machine."""
    top = max(float(row.value) for row in rows) * 1.1
    step = (WIDTH - 2 * MARGIN) / max(len(rows) - 1, 1)
    points: dict[str, list[tuple[float, float]]] = {}
    parts = [f'<text x="0" y="14" font-weight="bold">{escape(title)}</text>']
    parts.append(f'<path d="M0 {HEIGHT - MARGIN}H{WIDTH - MARGIN}" stroke="#999"/>')
    for number, row in enumerate(rows):
        x, y = MARGIN / 2 + number * step, 30 + (HEIGHT - MARGIN - 30) * (1 - float(row.value) / top)
        points.setdefault(row.machine, []).append((x, y))
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colors[row.machine]}"/>')
        if LABELS < len(rows) != number + 1 and number:
            continue
        parts.append(f'<text x="{x:.0f}" y="{y - 7:.0f}" text-anchor="middle">{row.value}</text>')
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - MARGIN + 14}" text-anchor="middle" fill="#666">{row.date[5:]}</text>')
    for name, places in points.items():
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colors[name]}"/>')
    return "\n".join(parts)


def plot(rows):
    """SVG with a panel for each benchmark, and the machines by color."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if PLOTTED.get(row.bench) == row.figure:
            panels.setdefault(f"{row.bench}: {row.figure}{f', {row.unit}' if row.unit else ''}", []).append(row)
    machines = dict.fromkeys(row.machine for shown in panels.values() for row in shown)
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(machines)}
    parts = []
    for number, (title, shown) in enumerate(panels.items()):
        x, y = 20 + number % COLUMNS * WIDTH, 10 + number // COLUMNS * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">\n{panel(title, shown, colors)}\n</g>')
    bottom = 20 + -(-len(panels) // COLUMNS) * HEIGHT
    for number, (name, color) in enumerate(colors.items()):
        parts.append(f'<text x="20" y="{bottom + number * 16}" fill="{color}">{escape(name)}</text>')
    size = f'width="{COLUMNS * WIDTH}" height="{bottom + len(colors) * 16}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def main():
    rows = read()
    RESULTS.write_text(with_tables(RESULTS.read_text(), rows))
    PLOT.write_text(plot(rows))


if __name__ == "__main__":
    main()
