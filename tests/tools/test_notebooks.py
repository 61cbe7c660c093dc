"""Notebooks in a kernel on the simulated card: their display in a browser, and the messages of a running cell."""

import json
import re

import nbformat
import pytest
from browser import Browser, find_chromium
from conftest import PYTHON, ROOT, Memlab
from notebooks import environment, notebook_of, run_notebook, shown

pytestmark = [pytest.mark.programs, pytest.mark.xdist_group("notebooks")]

EXAMPLE = ROOT / "examples" / "notebook.ipynb"

CELLS = [
    "%load_ext memlab\nimport torch",
    """%%memlab -o made
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
torch.cuda.reset_peak_memory_stats()""",
    """%%memlab
for _ in range(5):
    loss = model(torch.randn(2048, 1024, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()""",
    "print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_allocated())",
    "%memlab",
    "%%mlrun -f f\ndef f():\n    return model(torch.ones(8, 1024, device='cuda'))\nf();",
    "%%memlab --live\nx = torch.ones(1 << 20, device='cuda')\nraise ValueError('<so>')",
]
FIGURES = slice(2, None)

browser_needed = pytest.mark.skipif(
    find_chromium() is None,
    reason="no Chromium: 'tests/chromium.sh .venv' gets one from npm, or name yours in MEMLAB_CHROMIUM",
)


@pytest.fixture(scope="module", params=[True, False], ids=["preloaded", "late"])
def notebook(request, tmp_path_factory):
    """The cells above with their outputs."""
    memlab = Memlab(tmp_path_factory.mktemp("notebook"))
    return run_notebook(memlab, notebook_of(CELLS), request.param)


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


# JupyterLab's style rules that affect memlab's outputs.
JUPYTERLAB = """
.jp-RenderedHTMLCommon code { background-color: #fed; color: #123; padding: 1px 5px; }
.jp-RenderedHTMLCommon :not(pre) > code { background-color: #eee; padding: 1px 5px; }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon :is(td, th, tr) { text-align: right; padding: .5em; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: rgba(128, 128, 128, .1); }
.jp-RenderedHTMLCommon ul:not(.list-inline) { padding-left: 2em; }
"""


def page_of(folder, html, background, ink):
    """A page with these outputs, in the colours of a notebook's theme."""
    path = folder / f"page{background.strip('#')}.html"
    style = f"<style>body{{margin:0;background:{background};color:{ink}}}{JUPYTERLAB}</style>"
    body = f"<body><div class='jp-RenderedHTML jp-RenderedHTMLCommon'>{html}</div></body>"
    path.write_text(f"<!doctype html><meta charset=utf-8>{style}{body}")
    return path


def test_a_notebook_keeps_what_its_cells_showed(notebook):
    # GIVEN an executed notebook THEN only the last cell failed, with its own error
    errors = [[output.ename for output in cell.outputs if output.output_type == "error"] for cell in notebook.cells]
    assert errors == [[]] * 6 + [["ValueError"]]
    # AND each magic left text and HTML, also the cell that was followed by a widget
    for cell in (notebook.cells[number] for number in (1, 2, 4, 5, 6)):
        assert len(shown(cell)) == len(shown(cell, "text/plain")) == 1
        assert not shown(cell, "application/vnd.jupyter.widget-view+json")
    assert "In[7] failed after" in shown(notebook.cells[6], "text/plain")[0]
    # AND lines have the notebook's cell numbers
    text = shown(notebook.cells[2], "text/plain")[0]
    assert 'In[3]:3  loss = model(torch.randn(2048, 1024, device="cuda")).sum()' in text
    assert "In[2]:2  model = torch.nn.Sequential(" in shown(notebook.cells[4], "text/plain")[0]


@browser_needed
@pytest.mark.parametrize("background, ink", [("#ffffff", "#1f2328"), ("#111111", "#e6edf3")], ids=["light", "dark"])
def test_the_html_in_a_browser(browser, notebook, tmp_path, background, ink):
    html = "".join(part for cell in notebook.cells for part in shown(cell))
    path = page_of(tmp_path, html, background, ink)
    page = browser.open(path, width=1000)
    # THEN it has no errors, and fetches nothing
    assert (page.complaints, page.requests) == ([], [path.as_uri()])
    # AND all text has the colour of the notebook, except on the colours of categories
    inks = "[...new Set([...document.querySelectorAll('.memlab-out :is(p, th, td, code, summary, text)')].map("
    inks += "it => getComputedStyle(it)[it.tagName == 'text' ? 'fill' : 'color']))]"
    red, green, blue = (int(ink[at : at + 2], 16) for at in (1, 3, 5))
    assert page.evaluate(inks) == [f"rgb({red}, {green}, {blue})"]
    # AND file names and code are left-aligned, without JupyterLab's background
    styles = "[...new Set([...document.querySelectorAll('.memlab-out {}')].map(it => getComputedStyle(it).{}))]"
    assert page.evaluate(styles.format("td.what", "textAlign")) == ["left"]
    assert page.evaluate(styles.format("code", "backgroundColor")) == ["rgba(0, 0, 0, 0)"]
    # AND it fits into a narrow window: only tables that scroll are wider
    for width in (1000, 420):
        page.resize(width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@browser_needed
def test_the_chart_shows_the_course(browser, notebook, tmp_path):
    peak, reserved, end = map(int, notebook.cells[3].outputs[0].text.split())
    page = browser.open(page_of(tmp_path, shown(notebook.cells[2])[0], "#ffffff", "#000000"))
    # THEN the heights of the areas match PyTorch's counters
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg path[fill^=\"#\"], svg path[stroke-width]')].slice(0, 3).map("
        "it => { const box = it.getBBox(); return [box.y, box.y + box.height]; })"
    )
    (most, bottom), (least, _), (top, _) = boxes
    assert (bottom - most) / (bottom - top) == pytest.approx(peak / reserved, abs=0.01)
    assert least > most
    # AND its label has the figures for screen readers
    label = page.evaluate("document.querySelector('svg').getAttribute('aria-label')")
    assert re.fullmatch(r"memory over [\d.]+ \w+: peak [\d.]+ MiB allocated, at most [\d.]+ MiB reserved", label)
    # AND the categories fill their bar, each with its name, letter and bytes
    widths, bar = page.evaluate(
        "[[...document.querySelectorAll('.whole span')].map(it => it.getBoundingClientRect().width),"
        "document.querySelector('.whole').getBoundingClientRect().width]"
    )
    assert sum(widths) == pytest.approx(bar, abs=1)
    names = page.evaluate("[...document.querySelectorAll('.legend li')].map(it => it.textContent)")
    assert any(name.startswith("Pparameters ") for name in names) and len(names) == len(widths)
    # AND the table's sums are those of the columns
    cells = page.evaluate("[...document.querySelectorAll('tr.sum td')].map(it => it.textContent)")
    assert cells[0] in label and end > 0


FOLLOWED = """
import json, os, re
from jupyter_client.manager import KernelManager

def run(client, cell):
    sent, updates = client.execute(cell), []
    while True:
        message = client.get_iopub_msg(timeout=240)
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != sent:
            continue
        if kind == "status" and content["execution_state"] == "idle":
            return updates
        if kind == "comm_msg" and "html" in content["data"].get("state", {}):
            updates.append([kind, content["data"]["state"]["html"]])
        if kind in ("display_data", "update_display_data"):
            updates.append([kind, content["data"]])
        pages = [page if kind == "comm_msg" else page.get("text/html", "") for kind, page in updates]
        if len({held[0] for page in pages if "running" in page and (held := re.findall("holds [^;]*", page))}) > 1:
            open("seen", "w").close()

manager = KernelManager(kernel_name="python3", transport="ipc")  # Sockets in the folder: no port can be taken.
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=240)
results = []
for cell in json.load(open("cells")):
    results.append(run(client, cell))
    if os.path.exists("seen"):
        os.unlink("seen")
json.dump(results, open("result", "w"))
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def test_a_widget_follows_a_running_cell(memlab):
    # GIVEN cells that allocate until updates with two sizes were seen; with widgets, and in an environment without
    wait = "import os, time\nuntil = time.monotonic() + 240\nwhile not os.path.exists('seen'):\n"
    wait += "    assert time.monotonic() < until\n    kept.append(torch.ones(1 << 18, device='cuda'))\n    time.sleep(.05)"
    wait = "%%memlab --live\n" + wait
    cells = ["%load_ext memlab\nimport torch\nkept = []", wait, "import sys; sys.modules['anywidget'] = None", wait]
    (memlab.folder / "cells").write_text(json.dumps(cells))
    (memlab.folder / "followed.py").write_text(FOLLOWED)
    run = memlab.run(PYTHON, memlab.folder / "followed.py", preload=False, env=environment(memlab))
    assert run.code == 0, run.errors
    _, widget, _, output = json.loads((memlab.folder / "result").read_text())
    # THEN the widget was shown, received rising figures, and was replaced by HTML in the end
    (first, shown_first), *updates, (last, shown_last) = widget
    assert first == "display_data" and "application/vnd.jupyter.widget-view+json" in shown_first
    pages = [html for kind, html in updates if kind == "comm_msg" and "running" in html]
    units = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
    sizes = [
        float(size) * 2 ** units[unit]
        for size, unit in (re.search(r"holds ([\d.]+) (\w+)", page).groups() for page in pages)
    ]
    assert len(sizes) >= 2 and sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert last == "update_display_data" and "In[2] took" in shown_last["text/html"]
    # AND without widgets the output itself was replaced
    kinds = [kind for kind, _ in output]
    assert kinds[0] == "display_data" and set(kinds[1:]) == {"update_display_data"} and len(kinds) >= 4
    assert "has been running for" in output[1][1]["text/html"] and "In[4] took" in output[-1][1]["text/html"]


@browser_needed
def test_the_widget_in_a_browser(browser, tmp_path):
    from memlab._notebook.live import _WIDGET

    # GIVEN the widget's module, and a model like a front end's
    script = _WIDGET.replace("export default", "window.widget =")
    script += "const heard = {}; window.model = {html: '<b>1</b>', get() { return this.html; }, "
    script += "on(what, then) { heard[what] = then; }};"
    script += "widget.render({model, el: document.body}); window.heard = heard;"
    path = tmp_path / "widget.html"
    path.write_text(f"<!doctype html><body></body><script type=module>{script}</script>")
    page = browser.open(path)
    # THEN it shows the HTML, and later updates
    assert page.evaluate("document.querySelector('b').textContent") == "1"
    page.evaluate("model.html = '<b>2</b>'; heard['change:html']()")
    assert page.evaluate("document.body.textContent.trim()") == "2" and page.complaints == []


def without_figures(outputs):
    """Outputs of a cell, without values that vary between runs or PyTorch versions."""
    plain = []
    for output in outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        kinds = sorted(output.get("data", {}))
        plain.append((output.output_type, kinds, re.sub(r"[\d.]+ ?([KMG]iB|[BKMG]|s|ms|µs)?\b", "#", text).split()))
    return plain


def test_the_example_notebook_shows_what_is_saved(memlab):
    saved, example = nbformat.read(EXAMPLE, 4), nbformat.read(EXAMPLE, 4)
    # WHEN the example runs
    run = run_notebook(memlab, example)
    # THEN no cell fails, and each shows the outputs of the file
    assert saved.cells and any(shown(cell) for cell in saved.cells if cell.cell_type == "code")
    for now, then in zip(run.cells, saved.cells, strict=True):
        if now.cell_type == "code":
            assert without_figures(now.outputs) == without_figures(then.outputs), now.source
            assert all(output.output_type != "error" for output in now.outputs)
    # AND it contains no path of a machine
    assert not re.search(r"/(home|root|tmp|work)/", EXAMPLE.read_text())
