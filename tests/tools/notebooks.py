"""Runs cells in IPython's shell, and notebooks in a kernel, on the simulated card."""

import json
import os
from types import SimpleNamespace

import nbformat
from conftest import PYTHON, ROOT

_SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

cells, expression = json.load(open("cells"))
shell = InteractiveShell.instance()
shell.run_line_magic("colors", "NoColor")
results = []
for cell in cells:
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    results.append({
        "out": captured.stdout, "err": captured.stderr, "shown": [dict(output.data) for output in captured.outputs],
        "error": None if error is None else type(error).__name__,
    })
json.dump([results, eval(expression, shell.user_ns)], open("result", "w"))
"""

_NOTEBOOK = """
import sys, nbclient, nbformat
from traitlets.config import Config
notebook = nbformat.read(sys.argv[1], 4)
# Longer than any machine takes. (nbclient goes on without the outputs that it has not got after 4 s.)
patience = {"timeout": 240, "startup_timeout": 240, "iopub_timeout": 240}
# Sockets in the folder, since another kernel may take a port between its choice and its use.
sockets = Config({"KernelManager": {"transport": "ipc"}})
nbclient.NotebookClient(notebook, kernel_name="python3", allow_errors=True, config=sockets, **patience).execute()
nbformat.write(notebook, sys.argv[1])
"""


def environment(memlab):
    """The package of this tree, and IPython's folders inside the test's."""
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": ":".join(path for path in paths if path),
        "IPYTHONDIR": memlab.folder / "ipython",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def run_cells(memlab, cells, preload=False, value="None", env=None, **options):
    """Runs cells in a shell. Returns each cell's output, display and error, and the value of an expression after the
    last."""
    (memlab.folder / "cells").write_text(json.dumps([cells, value]))
    (memlab.folder / "shell.py").write_text(_SHELL)
    run = memlab.python(memlab.folder / "shell.py", preload=preload, env=environment(memlab) | (env or {}), **options)
    assert run.code == 0, run.errors
    results, value = json.loads((memlab.folder / "result").read_text())
    return [SimpleNamespace(**result) for result in results], value


def run_notebook(memlab, notebook, preload=False):
    """Runs a notebook in a kernel; returns it with its outputs."""
    path = memlab.folder / "notebook.ipynb"
    nbformat.write(notebook, path)
    (memlab.folder / "notebook.py").write_text(_NOTEBOOK)
    command = [PYTHON, memlab.folder / "notebook.py", path]
    run = memlab.run(*command, preload=preload, env=environment(memlab))
    assert run.code == 0, run.errors
    return nbformat.read(path, 4)


def notebook_of(cells):
    """A notebook of code cells."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def shown(cell, kind="text/html"):
    """Content that a notebook cell displays in one form."""
    return [output.data[kind] for output in cell.outputs if output.output_type == "display_data" and kind in output.data]
