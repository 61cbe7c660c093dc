"""%load_ext memlab: %mlrun, %memlab and %%memlab in IPython's shell, compared with PyTorch's own counters."""

import re
import subprocess

from conftest import PYTHON
from notebooks import environment, run_cells
from tool_runs import START

LOAD = "%load_ext memlab\nimport torch, memlab"

# The cells of pytorch_memlab's README, without imports.
README_CELL = """%%mlrun -f func
import torch
from memlab import profile, set_target_gpu
def func():
    net1 = torch.nn.Linear(1024, 1024).cuda(0)
    set_target_gpu(1)
    net2 = torch.nn.Linear(1024, 1024).cuda(1)
    set_target_gpu(0)
    net3 = torch.nn.Linear(1024, 1024).cuda(0)
"""
README_LINE = """import torch
from memlab import profile, set_target_gpu
def func(input_size):
    net1 = torch.nn.Linear(input_size, 1024).cuda(0)
%mlrun -f func func(2048)
"""


def table(cell):
    """Figures of a displayed line profile, by line of code."""
    (bundle,) = cell.shown
    found = {}
    for row in bundle["text/plain"].splitlines():
        match = re.match(r"((?:\s*-?[\d.]+[BKMG])+)\s+(\d+)  (.*)", row)
        if match:
            found[match[3].strip()] = match[1].split()
    return found


@START
def test_the_readme_cells_run(memlab, preload):
    # GIVEN the README's cells, in the order of the README, and the first one with a call
    cells = ["%load_ext memlab", README_CELL, README_CELL + "func()", README_LINE]
    results, _ = run_cells(memlab, cells, preload, devices=2)
    _, defined, called, line = results
    assert [result.error for result in results] == [None] * 4 and not "".join(result.err for result in results)
    # THEN a cell that only defines the function reports that nothing called it
    assert "no data: the function was not called" in defined.shown[0]["text/plain"]
    # AND in others each line has the figures of the selected GPU
    figures = table(called)
    size = 4 * (1024 * 1024 + 1024)
    assert figures["net1 = torch.nn.Linear(1024, 1024).cuda(0)"][0] == f"{size / 2**20:.2f}M"
    assert figures["net2 = torch.nn.Linear(1024, 1024).cuda(1)"][0] == f"{size / 2**20:.2f}M"
    assert figures["net3 = torch.nn.Linear(1024, 1024).cuda(0)"][0] == f"{2 * size / 2**20:.2f}M"
    assert table(line)["net1 = torch.nn.Linear(input_size, 1024).cuda(0)"][0] == "8.00M"
    # AND HTML for notebooks, with the code
    assert "torch.nn.Linear(input_size, 1024)" in line.shown[0]["text/html"]


@START
def test_functions_of_the_cell_itself(memlab, preload):
    # GIVEN a cell that defines the profiled function, run again with another body, and names from an import and a class
    cell = "%%mlrun -f f\ndef f():\n    return torch.ones({0} << 18, device='cuda')\nlen(f())"
    module = memlab.folder / "mine.py"
    module.write_text("import torch\ndef g():\n    return torch.ones(1 << 18, device='cuda')\n")
    others = "%%mlrun -f mine.g -f Net.forward\nimport mine\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
    others += "        return x + 1\nNet()(mine.g());"
    results, _ = run_cells(memlab, [LOAD, cell.format(1), cell.format(4), others], preload)
    _, first, again, others = results
    assert [result.error for result in results] == [None] * 4
    # THEN the function that the cell defined is profiled, not that of an earlier run
    for result, n in ((first, 1), (again, 4)):
        assert table(result)[f"return torch.ones({n} << 18, device='cuda')"][3] == f"{n}.00M"
    # AND the value of the last expression is shown, unless the cell ends with ;
    assert [result.out for result in (first, again, others)] == ["Out[2]: 262144\n", f"Out[3]: {1 << 20}\n", ""]
    text = others.shown[0]["text/plain"]
    assert len(others.shown) == 1 and "## g" in text and "## Net.forward" in text and "1.00M" in text


@START
def test_statements_run_as_they_stand(memlab, preload):
    # GIVEN statements with an assignment, two spaces in a string, braces, a dollar and a minus
    cells = [
        LOAD + "\ndef f(*a, **k):\n    return a\nn = 3",
        "%mlrun x = f()",
        '%mlrun -f f y = f("a  b", {"n": n}, "$n")',
        "%mlrun -f f -- -n; z = -n",
        "%mlrun -qf f w = [f(i) for i in range(n)]",
    ]
    results, values = run_cells(memlab, cells, preload, value="[x, y, z, w]")
    # THEN they run as in plain Python
    assert [result.error for result in results] == [None] * 5 and not "".join(result.err for result in results)
    assert values == [[], ["a  b", {"n": 3}, "$n"], -3, [[0], [1], [2]]]
    # AND without -f the output reports that nothing is profiled
    assert results[1].out == "no data: no function is profiled: name one with -f\n"


@START
def test_options_of_the_magics(memlab, preload):
    setup = (
        LOAD
        + "\ndef f(device='cuda'):\n    kept = torch.ones(1 << 20, device=device)\n    return kept\nname = 'figures.txt'"
    )
    cells = [
        setup,
        "%mlrun -q -f f f()",
        "prof = %mlrun -r -f f f()",
        "%mlrun -T {name} -f f f()",
        "%mlrun -q -T quiet.txt -D -c line.allocated -f f f()",
        "%mlrun -D -c line.allocated -f f f()",
        "%mlrun -c allocation.all.current -f f f()",
        "%mlrun -g 1 -f f a, b = f('cuda:0'), f('cuda:1')",
    ]
    results, kind = run_cells(memlab, cells, preload, value="type(prof).__name__ + str(len(prof.profiles()))", devices=2)
    _, quiet, returned, written, both, only, more, gpu = results
    assert [result.error for result in results] == [None] * 8, [result.err for result in results]
    # THEN -q shows nothing, and -r returns the profiler instead
    assert (quiet.out, quiet.shown, returned.out, returned.shown, kind) == ("", [], "", [], "LineProfiler1")
    # AND -T writes the displayed text, with the requested columns
    assert (memlab.folder / "figures.txt").read_text().strip() == written.shown[0]["text/plain"].strip()
    assert written.out == "the figures are in figures.txt\n"
    assert (both.out, both.shown) == ("", [])
    assert (memlab.folder / "quiet.txt").read_text().strip() == only.shown[0]["text/plain"].strip()
    # AND -D hides the default columns, and -c adds to them
    line = "kept = torch.ones(1 << 20, device=device)"
    assert table(only)[line] == ["4.00M"]
    assert "allocation" in more.shown[0]["text/plain"] and "active_bytes" in more.shown[0]["text/plain"]
    # AND -g counts the bytes of that GPU only
    assert table(gpu)[line][0] == "4.00M"


def test_mistakes_are_reported_in_one_line(memlab):
    # GIVEN cells that cannot run as they stand, and the message for each
    mistakes = [
        ("%mlrun -f nothing ran = 1", "'nothing' is no function: NameError: name 'nothing' is not defined"),
        ("%mlrun -f 3 ran = 1", "'3' is no function: 3 has no Python code"),
        ("%mlrun -f len ran = 1", "'len' is no function: <built-in function len> has no Python code"),
        ("%%mlrun -f nothing\nran = 1", "'nothing' is no function"),
        ("%%mlrun -f f x = 1\nran = 1", "'x = 1' is no option of %%mlrun"),
        ("%mlrun -c nothing -f f ran = 1", "'nothing' is no column: use a key of torch.cuda.memory_stats()"),
        ("%mlrun -D -f f ran = 1", "-D without -c leaves no column"),
        ("%mlrun -g 5 -f f ran = 1", "there is no GPU 5: this machine has 1"),
        ("%mlrun -g one -f f ran = 1", "argument -g/--gpu: invalid int value: 'one'"),
        ("%mlrun --bogus ran = 1", "unrecognized arguments: --bogus"),
        ("%mlrun -f f", "nothing to run: %mlrun -f FUNC STATEMENT"),
        ("%mlrun -q -T /nowhere/x -f f y = 1", "/nowhere/x cannot be written: No such file or directory"),
        ("%%mlrun\nimport asyncio\nran = 1\nawait asyncio.sleep(0)", "mlrun cannot run a cell with `await`"),
        ("%%memlab\nimport asyncio\nran = 1\nawait asyncio.sleep(0)", "memlab cannot run a cell with `await`"),
        ("%memlab --bogus", "unrecognized arguments: --bogus"),
        ("%memlab -g 5", "there is no GPU 5: this machine has 1"),
        ("%memlab -o 5", "'5' is no name of a variable"),
    ]
    # WHEN they are run, one after the other
    lines = [line for line, _ in mistakes]
    (_, *results), ran = run_cells(memlab, [LOAD + "\ndef f():\n    pass\nran = 0", *lines], value="ran")
    # THEN each prints one line without a traceback, and nothing ran
    for (line, message), result in zip(mistakes, results, strict=True):
        assert result.err.startswith("UsageError: ") and message in result.err and result.err.count("\n") == 1, line
        assert (result.error, result.shown) == ("UsageError", []), line
    assert ran == 0


@START
def test_a_failing_statement_shows_its_figures(memlab, preload):
    cell = "%%mlrun -f f\ndef f():\n    x = torch.ones(1 << 20, device='cuda')\n    raise ValueError('so')\nf()"
    (_, result), _ = run_cells(memlab, [LOAD, cell], preload)
    assert result.error == "ValueError"
    assert table(result)["x = torch.ones(1 << 20, device='cuda')"][0] == "4.00M"


TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
"""
STEPS = """%%memlab -o figures
for _ in range(3):
    x = torch.randn(512, 1024, device="cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
after = torch.cuda.memory_allocated()
loss.item()
"""


@START
def test_a_cell_has_pytorchs_figures(memlab, preload):
    # GIVEN training in a cell, between PyTorch's counters
    counted = "torch.cuda.reset_peak_memory_stats(); before = torch.cuda.memory_allocated()"
    value = """[before, torch.cuda.max_memory_allocated(), after, torch.cuda.max_memory_reserved(),
        figures.start, figures.peak, figures.end, figures.peak_reserved,
        [[line.file, line.line, line.code, line.at_start, line.at_peak, line.at_end, line.allocated, line.kept]
         for line in figures.lines],
        figures.categories_at_peak, figures.timeline, [figures.growth, figures.kept, figures.name, figures.error],
        torch.cuda.memory_stats()["allocated_bytes.all.allocated"]]""".replace("\n", "")
    (*_, result), values = run_cells(memlab, [LOAD + TRAINING, counted, STEPS], preload, value=value)
    before, peak, after, reserved, *own, lines, categories, timeline, rest, _ = values
    # THEN they equal the cell's, to the byte
    assert own == [before, peak, after, reserved]
    assert rest == [peak - before, after - before, "In[3]", None]
    for figure, column in ((before, 3), (peak, 4), (after, 5)):
        assert sum(line[column] for line in lines) == figure
    # AND its lines are named as the notebook names them, with their text and their numbers in the cell
    named = {(file, number): code for file, number, code, *_ in lines}
    assert named["In[3]", 3] == 'x = torch.randn(512, 1024, device="cuda")'
    assert named["In[3]", 4] == "loss = model(x).sum()"
    assert named["In[3]", 6] == "optimizer.step()"
    assert named["In[1]", 3].startswith("model = torch.nn.Sequential(")
    # AND memory over time has the peak, and begins and ends with the cell
    duration, peak_time, _, points = timeline
    assert max(most for _, _, most, _, _ in points) == peak
    assert (points[0][1], points[-1][3]) == (before, after)
    assert 0 < peak_time < duration and all(0 <= time <= duration for time, *_ in points)
    assert sum(nbytes for _, nbytes in categories) >= reserved
    # AND the cell shows its value as without the magic, then the figures as text and HTML
    (figures,) = result.shown
    assert re.fullmatch(r"Out\[3\]: \S+\n", result.out)
    assert figures["text/plain"].startswith("In[3] took ") and "optimizer.step()" in figures["text/plain"]
    assert "<svg" in figures["text/html"] and "In[3]:6" in figures["text/html"]


@START
def test_a_cell_that_fails_shows_its_figures(memlab, preload):
    cell = "%%memlab -o figures\nx = torch.ones(1 << 20, device='cuda')\nraise ValueError('so')"
    (_, result, after), kept = run_cells(memlab, [LOAD, cell, "1 + 1"], preload, value="[figures.kept, figures.error]")
    # THEN the cell's own error is raised, with its line, and the figures are shown
    assert result.error == "ValueError" and "raise ValueError('so')" in result.out
    assert kept == [4 << 20, "ValueError"] and "failed after" in result.shown[0]["text/plain"]
    assert after.error is None


def test_kept_memory_of_a_cell_is_not_its_change(memlab):
    # GIVEN a cell that runs twice and frees the first run's memory in the second, and one that ends the recording
    cell = "%%memlab -o figures\nx = torch.ones(1 << 20, device='cuda')"
    value = "[figures.start, figures.end, figures.kept, [[line.file, line.kept] for line in figures.lines]]"
    cells = [LOAD, cell, cell, "%%memlab\nmemlab.stop()"]
    results, figures = run_cells(memlab, cells[:3], value=value)
    # THEN the lines are those of the second run, and kept is the live part of its allocations
    assert figures == [4 << 20, 4 << 20, 4 << 20, [["In[3]", 4 << 20], ["In[2]", 0]]]
    assert "after 4.00 MiB (0 B); kept 4.00 MiB of the 4.00 MiB" in results[2].shown[0]["text/plain"]
    # AND a cell without figures gives the reason
    results, _ = run_cells(memlab, cells)
    assert "no figures: `memlab.stop()` ended the recording" in results[3].shown[0]["text/plain"]


def test_a_cell_runs_as_without_the_magic(memlab):
    # GIVEN cells with a magic, a second cell magic, empty lines first, a system call, a syntax error, a display of nothing
    cells = [
        LOAD,
        "%%memlab -q\nimport os\n%time y = torch.ones(1 << 18, device='cuda')\nfiles = !echo one\nfiles[0]",
        "%%time\n%%memlab -o figures\n\nz = torch.ones(1 << 18, device='cuda')",
        "\n\n%%memlab -q -o empty\n\nw = torch.ones(1 << 18, device='cuda')\nw.shape;",
        "%%memlab\nx = (",
        "%%memlab -q\ndef g():\n    return h\nh = 5",
    ]
    value = "[[(line.file, line.line, line.code) for line in figures.lines + empty.lines if line.kept], g(), files[0]]"
    results, (lines, g, files) = run_cells(memlab, cells, value=value)
    # THEN they run as without the magic, under their names and numbers in the notebook
    assert [result.error for result in results] == [None] * 4 + ["SyntaxError", None]
    assert results[1].out.endswith("Out[2]: 'one'\n") and (g, files) == (5, "one")
    assert lines == [
        ["In[3]", 4, "z = torch.ones(1 << 18, device='cuda')"],
        ["In[4]", 3, "w = torch.ones(1 << 18, device='cuda')"],
    ]
    assert results[3].shown == [] and "Wall time" in results[2].out


@START
def test_the_gpu_now(memlab, preload):
    # GIVEN two GPUs in use
    setup = LOAD + TRAINING + "model(torch.ones(8, 1024, device='cuda')).sum().backward()\noptimizer.step()\n"
    setup += "other = torch.ones(1 << 20, device='cuda:1')"
    value = """[[[m.totals.allocated, sum(line.live for line in m.lines), sum(row.live for row in m.categories),
        m.totals.used, torch.cuda.memory_allocated(m.device)] for m in both], one.device, one.totals.allocated]""".replace(
        "\n", ""
    )
    cells = [setup, "%memlab -o both", "%memlab -g 1 -n 1 -o one", "%memlab -q"]
    results, (both, device, allocated) = run_cells(memlab, cells, preload, value=value, devices=2)
    assert [result.error for result in results] == [None] * 4
    # THEN the figures are PyTorch's, and sum to it
    for own, lines, categories, used, truth in both:
        assert own == lines == truth > 0 and categories == used > truth
    assert (device, allocated) == (1, 4 << 20)
    # AND both are shown, one of them, or none
    first, second = results[1].shown
    assert first["text/plain"].startswith("cuda:0 ") and second["text/plain"].startswith("cuda:1 ")
    for text in ("parameters", "optimizer state", "In[1]:3  model = torch.nn.Sequential(", "Sequential.0 (Linear)"):
        assert text in first["text/plain"] and text.split("  ")[0] in first["text/html"]
    assert [bundle["text/plain"][:6] for bundle in results[2].shown] == ["cuda:1"] and results[3].shown == []


def test_without_a_gpu_each_magic_gives_the_reason(memlab):
    # GIVEN a machine without one
    cells = [LOAD, "%memlab", "%%memlab\nx = 1", "%%mlrun -f f\ndef f():\n    return 1\nf();"]
    results, _ = run_cells(memlab, cells, env={"CUDA_VISIBLE_DEVICES": ""})
    # THEN nothing fails, and each gives the reason
    assert [result.error for result in results] == [None] * 4
    reason = "there is no CUDA device"
    for result in results[1:3]:
        assert reason in result.shown[0]["text/plain"] and reason in result.shown[0]["text/html"]
    assert results[3].out.startswith(f"no data: {reason}")


def test_importing_the_package_imports_neither_ipython_nor_torch(memlab):
    program = (
        "import memlab, sys; assert not {'torch', 'IPython', 'anywidget'} & set(sys.modules); memlab.load_ipython_extension"
    )
    paths = environment(memlab) | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([PYTHON, "-c", program], env={k: str(v) for k, v in paths.items()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_extension_unloads(memlab):
    results, _ = run_cells(memlab, ["%load_ext memlab", "%unload_ext memlab", "%mlrun x = 1"])
    assert "`%mlrun` not found" in results[2].err


def test_the_help_names_the_options(memlab):
    value = "get_ipython().find_line_magic('mlrun').__doc__"
    _, text = run_cells(memlab, ["%load_ext memlab"], value=value)
    for option in ("-f FUNC", "-c COL", "-D", "-r", "-g GPU", "-q", "-T FILE", "%%mlrun -f func"):
        assert option in text, text
