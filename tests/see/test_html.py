"""The page of `memlab report --html` in a browser, for a real training."""

import json
import subprocess

import pytest
from browser import Browser, find_chromium
from conftest import ROOT, Memlab

pytestmark = [
    pytest.mark.xdist_group("html"),
    pytest.mark.skipif(
        find_chromium() is None,
        reason="no Chromium: 'tests/chromium.sh .venv' gets one from npm, or name yours in MEMLAB_CHROMIUM",
    ),
]

GPT = [ROOT / "examples" / "train_gpt.py", "--layers", "12", "--width", "128", "--context", "64"]


def write_page(memlab, trace):
    page = trace.with_suffix(".html")
    command = [memlab.command, "report", trace, "--html", page]
    done = subprocess.run(command, capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    return page


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The page of twenty training steps, and its JSON report."""
    memlab = Memlab(tmp_path_factory.mktemp("training"))
    run = memlab.python(*GPT, "--steps", "20", fresh=True)
    assert run.code == 0, run.errors
    return write_page(memlab, run.trace), memlab.report(run.trace)


def rows(page, table, column):
    """The cells of a table's column."""
    return page.evaluate(
        f"Array.from(document.querySelector('table[aria-label={table}]').tBodies[0].rows, "
        f"row => row.cells[{column}].dataset.v ?? row.cells[{column}].textContent)"
    )


def click_head(page, table, column):
    page.evaluate(f"document.querySelectorAll('table[aria-label={table}] th button')[{column}].click()")


def box(page, what):
    """Scrolls to an element and returns its middle; `what` is an expression."""
    return page.evaluate(
        f"(() => {{ const it = {what}; it.scrollIntoView({{block: 'center', behavior: 'instant'}});"
        "const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2, box.width]; })()"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_self_contained(browser, training, dark):
    # WHEN the page is opened
    path, report = training
    page = browser.open(path, dark=dark)
    # THEN it has no errors and fetches nothing
    assert page.complaints == []
    assert page.requests == [path.as_uri()]
    # AND it follows the system's light or dark theme
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    # AND it fits: only elements with their own scroll bar are wider than the window
    for width in (1280, 400):
        page.resize(width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    # AND it fits on paper
    page.ask("Emulation.setEmulatedMedia", media="print")
    page.resize(720)
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert "train_gpt.py --layers 12" in page.evaluate("document.querySelector('h1').textContent")
    held = sum(int(held) for held in rows(page, "lines", 1))
    assert held == report["devices"][0]["peak_allocated_bytes"]


def test_tables_sort(browser, training):
    path, report = training
    page = browser.open(path)
    held = [line["live_bytes_at_peak"] for line in report["lines"]]
    # GIVEN the lines sorted by their bytes at the peak
    assert [int(value) for value in rows(page, "lines", 1)] == sorted(held, reverse=True)
    # WHEN another column head is clicked THEN they are sorted by it, descending; clicked again, ascending
    click_head(page, "lines", 6)
    blocks = [int(value) for value in rows(page, "lines", 6)]
    assert blocks == sorted(blocks, reverse=True) and len(set(blocks)) > 5
    click_head(page, "lines", 6)
    assert [int(value) for value in rows(page, "lines", 6)] == blocks[::-1]
    order = "Array.from(document.querySelectorAll('table[aria-label=lines] th'), th => th.ariaSort)"
    assert page.evaluate(order) == ["none"] * 6 + ["ascending"]
    # AND names sort naturally: line 9 before line 10
    click_head(page, "lines", 0)
    numbers = [int(name.split("train_gpt.py:")[1].split()[0]) for name in rows(page, "lines", 0) if "train_gpt" in name]
    assert numbers == sorted(numbers) and len(numbers) > 5


def test_tables_are_searched_and_show_their_first_rows(browser, training):
    page = browser.open(training[0])
    visible = "Array.from(document.querySelectorAll('table[aria-label={}] tbody tr')).filter(row => row.checkVisibility())"
    shown = visible.format("steps") + ".length"
    assert page.evaluate(shown) == 12
    page.evaluate("document.querySelector('table[aria-label=steps]').closest('.scroll').nextSibling.firstChild.click()")
    assert page.evaluate(shown) == 20
    page.evaluate("document.querySelector('input[aria-label=\"show only lines with\"]').focus()")
    for letter in "block.f":
        page.press(letter)
    found = page.evaluate(visible.format("lines") + ".map(row => row.textContent)")
    assert found and all("Block.forward" in line for line in found)


def test_charts_zoom_by_dragging(browser, training):
    page = browser.open(training[0])
    chart = "document.querySelector('svg.timeline[data-points]')"
    readout = f"{chart}.closest('figure').querySelector('.readout').textContent"
    page.evaluate(f"{chart}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, right, bottom = page.evaluate(
        f"(({{left, top, right, bottom}}) => [left, top, right, bottom])({chart}.getBoundingClientRect())"
    )
    width, middle = right - left, (top + bottom) / 2
    # GIVEN the step with the peak; WHEN the mouse is on its mark THEN the lines that held the peak are named
    mark = f"{chart}.querySelector('.peak').dataset.x / 1200"
    page.hover(left + width * page.evaluate(mark), middle)
    words = page.evaluate(readout)
    assert "allocated: " in words and "train_gpt.py:" in words and words.count(" · ") == 4
    # WHEN a part is dragged over THEN it fills the chart, and marks outside it are hidden
    zoom = f"{chart}.querySelector('.zoom').getAttribute('transform')"
    marks = f"Array.from({chart}.querySelectorAll('[data-x]')).filter(mark => mark.style.visibility !== 'hidden').length"
    before = page.evaluate(marks)
    page.drag(left + width * 0.5, left + width * 0.6, middle)
    assert float(page.evaluate(zoom).split("scale(")[1].split()[0]) > 8 and page.evaluate(marks) < before
    # AND Escape shows the whole step again
    page.evaluate(f"{chart}.focus()")
    page.press("Escape")
    assert page.evaluate(zoom) == "translate(0 0) scale(1 1)" and page.evaluate(marks) == before
    assert page.complaints == []


def test_the_flamegraph_zooms_and_searches(browser, training):
    path, report = training
    page = browser.open(path)
    graph = "document.querySelector('svg.flamegraph')"
    frame = f"Array.from({graph}.querySelectorAll('.f')).find(f => f.textContent.startsWith('Block.forward'))"
    frames = f"Array.from({graph}.querySelectorAll('.f')).filter(f => f.checkVisibility()).length"
    facts = f"{graph}.querySelector('.facts').textContent"
    before = page.evaluate(frames)
    x, y, width = box(page, frame)
    # WHEN the mouse is over a call THEN the line above the graph describes it
    page.hover(x, y)
    assert "train_gpt.py:4" in page.evaluate(facts) and "MiB (" in page.evaluate(facts)
    # WHEN it is clicked THEN it takes the whole width, and its siblings are hidden
    page.click(x, y)
    assert box(page, frame)[2] > width * 1.1
    assert abs(box(page, frame)[2] - box(page, graph)[2]) < 3
    assert 1 < page.evaluate(frames) < before
    # AND its name is not shortened
    assert "…" not in page.evaluate(f"{frame}.querySelector('text').textContent")
    # WHEN Escape is pressed THEN the whole graph is shown again
    page.press("Escape")
    assert page.evaluate(frames) == before and abs(box(page, frame)[2] - width) < 1
    # WHEN the arrow keys are pressed THEN the focus moves from caller to callee, and Enter zooms
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.press(key)
    assert page.evaluate("document.activeElement.dataset.d") == "3"
    page.press("Enter")
    assert abs(box(page, "document.activeElement")[2] - box(page, graph)[2]) < 3
    page.press("Escape")
    # WHEN a search is entered THEN the matches are marked and summed, each byte once. (The mouse leaves the graph first:
    # Chromium moves it again when the call below it changes, and the line above the graph would describe that call.)
    page.hover(1, 1)
    page.evaluate(f"{graph}.querySelector('input').focus()")
    for letter in "main  train":  # the function, not a folder of that name
        page.press(letter)
    hits = page.evaluate(f"Array.from({graph}.querySelectorAll('.hit'), f => Number(f.dataset.b))")
    # (Some lines of main are too small to be drawn.)
    peak = report["devices"][0]["peak_allocated_bytes"]
    assert len(hits) >= 2 and 0.999 * peak < sum(hits) <= peak
    assert "(100.0 %)" in page.evaluate(facts)
    assert page.complaints == []


def test_layers_open_and_close(browser, training):
    page = browser.open(training[0])
    shown = "Array.from(document.querySelectorAll('.tree .row')).filter(row => row.checkVisibility()).length"
    first = page.evaluate(shown)
    assert page.evaluate("Array.from(document.querySelectorAll('.tree .what'), it => it.textContent.trim())[1]") == "itself"
    # WHEN the outermost layer is closed by the keyboard THEN only it, the header and the memory outside layers are left
    page.evaluate("document.querySelector('.tree summary').focus()")
    page.press("Enter")
    assert page.evaluate(shown) == 3 < first
    page.press("Enter")
    assert page.evaluate(shown) == first
    page.evaluate("document.querySelector('[data-open=all]').click()")
    names = page.evaluate("Array.from(document.querySelectorAll('.tree .what'), it => it.textContent.trim())")
    assert page.evaluate(shown) == len(names) + 1 > first
    # THEN numbers sort numerically
    blocks = [name for name in names if name.endswith(" Block")]
    assert blocks == [f"{number} Block" for number in range(12)]
    page.evaluate("document.querySelector('[data-open=none]').click()")
    assert page.evaluate(shown) == 3


def test_the_chart_shows_values_under_the_mouse(browser, training):
    page = browser.open(training[0])
    x, y, _ = box(page, "document.querySelector('svg.timeline')")
    page.hover(x, y)
    said = page.evaluate("document.querySelector('.readout').textContent")
    assert said.startswith("after ") and "allocated" in said and "in use on the device" in said
    # AND by the keyboard
    page.evaluate("document.querySelector('svg.timeline').focus()")
    page.press("Home")
    assert page.evaluate("document.querySelector('.readout').textContent").startswith("after 0.00 ms:")


def test_an_out_of_memory_comes_first(browser, memlab):
    run = memlab.python(ROOT / "examples" / "train_gpt.py", "--batch", "64", memory="2GiB")
    assert run.code == 1
    page = browser.open(write_page(memlab, run.trace))
    verdict = page.evaluate("document.querySelector('.verdict').textContent.trim()")
    assert verdict.startswith("Out of memory") and "activations" in verdict
    assert "smaller batch" in page.evaluate("document.querySelector('.advice').textContent")
    assert page.evaluate("document.querySelectorAll('svg.timeline .oom').length") == 1
    assert page.complaints == []


def test_names_are_not_executed(browser, memlab):
    # GIVEN a trace with scripts as names, in every place that shows names
    evil = "</title></style></script><script>owned=1</script>"
    evil += "<img src=x onerror='owned=2'>\"'><svg onload=owned=3>"
    records = [
        {"memlab": 1, "pid": 7, "command": ["python", evil], "host": evil, "directory": "/gpt"},
        {"device": 0, "name": evil, "total_bytes": 1 << 30},
        {"software": "torch", "version": evil, "root": "/torch"},
        {"frame": 1, "file": f"/{evil}", "line": 1, "function": evil},
        {"stack": 1, "parent": 0, "frame": 1},
        {"layer": 1, "parent": 0, "type": evil, "name": evil},
        {"warning": evil},
        ["d+", 1, 1, 0, 64, 4096, "device", evil, evil, 1, 0, 0],
        ["a", 2, 1, 0, 4096, 4096, 1, 1, 5],
        ["oom", 3, 1, 0, 4096, 4096, 4096, 1, 1],
    ]
    trace = memlab.folder / "evil.jsonl"
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))
    # WHEN its page is opened
    path = write_page(memlab, trace)
    page = browser.open(path)
    # THEN they are only text
    assert page.evaluate("window.owned") is None
    assert page.evaluate("document.querySelectorAll('img, [onload], [onerror]').length") == 0
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.querySelector('.facts').textContent").count(evil) == 2
    assert page.complaints == [] and page.requests == [path.as_uri()]
