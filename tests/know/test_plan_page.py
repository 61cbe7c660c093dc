"""The page of `memlab plan --html` in a browser, for a real training."""

import json
import subprocess

import pytest
from browser import Browser, find_chromium
from conftest import PYTHON, ROOT, Memlab

pytestmark = [
    pytest.mark.xdist_group("plan page"),
    pytest.mark.skipif(
        find_chromium() is None,
        reason="no Chromium: 'tests/chromium.sh .venv' gets one from npm, or name yours in MEMLAB_CHROMIUM",
    ),
]

GPT = [ROOT / "examples" / "train_gpt.py", "--layers", "3", "--width", "128", "--context", "64"]


def planned(memlab, *options):
    done = subprocess.run([memlab.command, "plan", *options], capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The page of a plan, and the same plan as JSON."""
    folder = tmp_path_factory.mktemp("plan")
    page = folder / "plan.html"
    text = planned(
        Memlab(folder),
        "--card",
        "2GiB",
        "--json",
        "--html",
        page,
        "--keep",
        folder,
        "--",
        PYTHON,
        *GPT,
        "--batch",
        "{batch}",
    )
    return page, json.loads(text)


def texts(page, selector):
    return page.evaluate(f"Array.from(document.querySelectorAll('{selector}'), it => it.textContent)")


def values(page, table, column):
    """The numbers of a table's column."""
    rows = f"document.querySelector('table[aria-label={table}]').tBodies[0].rows"
    return page.evaluate(f"Array.from({rows}, row => +row.cells[{column}].dataset.v)")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_self_contained(browser, plan, dark):
    # WHEN the page is opened
    path, _ = plan
    page = browser.open(path, dark=dark)
    # THEN it has no errors and fetches nothing
    assert page.complaints == []
    assert page.requests == [path.as_uri()]
    # AND it fits: only elements with their own scroll bar are wider than the window
    for width in (1280, 400):
        page.resize(width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_matches_the_plan(browser, plan):
    path, plan = plan
    page = browser.open(path)
    # THEN the answer comes first
    assert f"The largest batch that fits is {plan['largest_batch']}" in texts(page, ".verdict")[0].replace(",", "")
    # AND the tables have the plan's figures
    rows = plan["batches"]
    keys = ["batch", "peak_allocated_bytes", "peak_reserved_bytes", "needed_bytes"]
    assert [values(page, "batches", column) for column in range(4)] == [[row[key] for row in rows] for key in keys]
    assert values(page, "settings", 1) == [row["needed_bytes"] for row in plan["settings"]]
    for what in ("categories", "lines"):
        assert values(page, what, 1) == [row["bytes"] for row in plan[what]], what
    # AND layers that differ only in their number are one row of the page
    assert sum(values(page, "layers", 1)) == sum(row["bytes"] for row in plan["layers"])
    names = texts(page, 'table[aria-label="layers"] tbody tr td:first-child')
    assert any(name.startswith("blocks.0–2.mlp.0") and "Linear ×3" in name for name in names), names
    assert not any(name.startswith("blocks.1.") for name in names)
    # AND the chart of batches has a point for each row of the table, filled where it fits
    points = page.evaluate(
        "Array.from(document.querySelectorAll('svg.batches circle'), it => [it.textContent, it.classList.contains('fits')])"
    )
    fits = {int(text.split()[1].strip(":,").replace(",", "")): fitting for text, fitting in points}
    largest = plan["largest_batch"]
    assert fits[largest] and not fits[largest + 1]
    assert all(fitting == (batch <= largest) for batch, fitting in fits.items())
    assert all(fits[row["batch"]] == row["fits"] for row in rows if row["batch"] in fits)
    # AND the chart of the steps has the peak and its composition
    assert "allocated, in backward" in texts(page, "svg.course .peak")[0]
    named = {text.split(":")[0] for text in texts(page, "svg.course .area title")}
    assert {"activations", "parameters", "gradients", "optimizer state"} <= named


def test_a_plan_of_a_program_as_it_is_has_no_picture_of_batches(browser, plan, tmp_path):
    # GIVEN one recorded trace, under a name that would be markup
    path, _ = plan
    trace = tmp_path / "<b>x.jsonl"
    trace.symlink_to(path.with_name("batch-8.jsonl"))
    # WHEN it is planned as it is, to standard output
    page = tmp_path / "page.html"
    page.write_text(planned(Memlab(tmp_path), "--html", "-", trace))
    # THEN only the page is written, with the chart of the steps
    opened = browser.open(page)
    assert opened.complaints == []
    assert opened.evaluate("document.querySelectorAll('svg.batches').length") == 0
    assert opened.evaluate("document.querySelectorAll('svg.course').length") == 1
    # AND the name is text
    assert "<b>x.jsonl" in texts(opened, "h1")[0]


def test_the_page_is_not_written_over_a_trace(plan):
    path, _ = plan
    trace = path.with_name("batch-8.jsonl")
    before = trace.read_bytes()
    done = subprocess.run([ROOT / "target/release/memlab", "plan", "--html", trace, trace], capture_output=True, text=True)
    assert done.returncode != 0
    assert "is a trace" in done.stderr
    assert trace.read_bytes() == before
