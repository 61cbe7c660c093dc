"""GPU time on the page of the report, and in a comparison of two runs."""

import json
import subprocess
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from conftest import Memlab

pytestmark = pytest.mark.xdist_group("gpu time shown")

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "timed.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Training runs recorded for three steps, for six, and for three without times."""
    memlab = Memlab(tmp_path_factory.mktemp("timed"))
    traces = {}
    for name, case, env in [
        ("short", "short", {"MEMLAB_TIME": "1"}),
        ("long", "plain", {"MEMLAB_TIME": "1"}),
        ("untimed", "short", {}),
    ]:
        traces[name] = memlab.folder / f"{name}.jsonl"
        done = memlab.python(PROGRAM, case, env=env | {"MEMLAB_OUTPUT": str(traces[name])})
        assert done.code == 0, done.errors
    return memlab, traces


def answer(memlab, *arguments):
    done = subprocess.run([memlab.command, *arguments], capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def diff(runs, before, after):
    memlab, traces = runs
    return json.loads(answer(memlab, "diff", "--json", traces[before], traces[after]))


def test_a_comparison_has_gpu_time(runs):
    # GIVEN three steps of a training run, and six; WHEN the runs are compared
    memlab, traces = runs
    short, long = memlab.report(traces["short"]), memlab.report(traces["long"])
    times = diff(runs, "short", "long")["gpu_time"]
    # THEN the totals are those of the reports
    totals = [report["devices"][0]["gpu_time_ns"] for report in (short, long)]
    assert [times["before_ns"], times["after_ns"], times["change_ns"]] == [*totals, totals[1] - totals[0]]
    # AND lines, layers and kernels each sum to them
    for rows in ("lines", "library_lines", "layers", "kernels"):
        for key in ("before_ns", "after_ns", "change_ns"):
            assert sum(row[key] for row in times[rows]) == times[key], (rows, key)
    # AND a layer's times are those of each report
    layer = next(row for row in times["layers"] if row["name"] == "0.up")
    expected = [next(row["gpu_time_ns"] for row in report["layers"] if row["name"] == "0.up") for report in (short, long)]
    assert [layer["before_ns"], layer["after_ns"]] == expected
    # AND the greatest change comes first, also in the text
    changes = [abs(row["change_ns"]) for row in times["kernels"]]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0
    text = answer(memlab, "diff", traces["short"], traces["long"])
    for title in ("over the whole run each", "by layer", "by line", "by kernel and copy"):
        assert f"\nGPU time {title}" in text
    assert "0–1.up  Linear ×2" in text.split("GPU time by layer")[1]


def test_a_comparison_needs_two_runs_with_times(runs):
    memlab, traces = runs
    for before, after in (("short", "untimed"), ("untimed", "short"), ("short", "short")):
        assert diff(runs, before, after)["gpu_time"] is None
        assert "GPU time" not in answer(memlab, "diff", traces[before], traces[after])


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium: 'tests/chromium.sh .venv' gets one from npm")
def test_the_page_has_a_chapter(runs):
    # GIVEN the page of a training run with times, in a browser
    memlab, traces = runs
    report = memlab.report(traces["long"])
    paths = {name: memlab.folder / f"{name}.html" for name in ("long", "untimed")}
    for name, path in paths.items():
        answer(memlab, "report", traces[name], "--html", path)
    total = report["devices"][0]["gpu_time_ns"]
    with Browser() as browser:
        page = browser.open(paths["long"])
        assert page.complaints == []
        rows = "Array.from(document.querySelector('table[aria-label=\"{}\"]').tBodies[0].rows)"
        # WHEN its tables are read; THEN layers, lines, and kernels with copies each sum to the device's time
        sums = {}
        for table in ("GPU time by layer", "GPU time by line", "GPU time by kernel", "copies and fills"):
            cells = page.evaluate(rows.format(table) + ".map(row => Number(row.cells[1].dataset.v))")
            assert cells == sorted(cells, reverse=True)
            sums[table] = sum(cells)
        assert sums["GPU time by layer"] == sums["GPU time by line"] == total
        assert sums["GPU time by kernel"] + sums["copies and fills"] == total
        # AND pointing at a kernel shows its full name
        names = page.evaluate(rows.format("GPU time by kernel") + ".map(row => row.cells[0].title)")
        assert sorted(names) == sorted(row["name"] for row in report["kernels"] if row["kind"] == "kernel")
        # AND the page fits a narrow window
        page.resize(400)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        # AND without times the page has no such chapter
        titles = "Array.from(document.querySelectorAll('h3'), title => title.textContent)"
        assert "GPU time" in page.evaluate(titles)
        assert "GPU time" not in browser.open(paths["untimed"]).evaluate(titles)
