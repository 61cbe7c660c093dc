"""Every allocation counts at a line, and at the program's own line wherever the program is installed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PROGRAMS = Path(__file__).parent / "programs"

TRAINING = """\
import copy
import gpulib
def train():
    gpulib.allocate(1024)
    copy.deepcopy([gpulib.Tensor()])
train()
"""
EXPECTED = [("train", 4, 1024), ("train", 5, 4096)]


@pytest.fixture
def packages(memlab):
    """A site-packages folder with a library that allocates."""
    folder = memlab.folder / "lib" / "python3.11" / "site-packages"
    (folder / "trainer").mkdir(parents=True)
    shutil.copy(PROGRAMS / "gpulib.py", folder)
    (folder / "trainer" / "__init__.py").touch()
    (folder / "trainer" / "train.py").write_text(TRAINING)
    return folder


def run(memlab, packages, *arguments, **options):
    environment = memlab.environment(
        LD_PRELOAD=memlab.library, MEMLAB_OUTPUT=memlab.folder / "lines.jsonl", PYTHONPATH=packages, HOME=memlab.folder
    )
    options = {"cwd": memlab.folder, "env": environment, "capture_output": True, "text": True} | options
    done = subprocess.run([sys.executable, *arguments], **options)
    assert (done.returncode, done.stderr) == (0, "")
    return memlab.folder / "lines.jsonl"


def lines_of(memlab, trace):
    """(file, function, line, bytes) of all lines."""
    return sorted(
        ((row["file"], row["function"], row["line"], row["live_bytes_at_end"]) for row in memlab.report(trace)["lines"]),
        key=lambda row: row[3],
    )


@pytest.mark.parametrize("way", ["script", "module", "file in packages", "command", "-c", "stdin"])
def test_the_programs_lines_count_wherever_it_is_installed(memlab, packages, way):
    # GIVEN a program that calls a library, also through the standard library
    arguments, file, options = (), str(packages / "trainer" / "train.py"), {}
    # WHEN it is started in one of the possible ways
    if way == "script":
        script = memlab.folder / "train.py"
        script.write_text(TRAINING)
        arguments, file = [script], str(script)
    elif way == "module":
        arguments = ["-m", "trainer.train"]
    elif way == "file in packages":
        arguments = [file]
    elif way == "command":
        command = memlab.folder / ".local" / "bin" / "trainer"
        command.parent.mkdir(parents=True)
        command.write_text("from trainer.command import main\nmain()\n")
        (packages / "trainer" / "command.py").write_text("def main():\n    import trainer.train\n")
        arguments = [command]
    elif way == "-c":
        arguments, file = ["-c", TRAINING], "<string>"
    else:
        arguments, file, options = ["-"], "<stdin>", {"input": TRAINING}
    # THEN memory is counted at its own lines
    trace = run(memlab, packages, *arguments, **options)
    assert lines_of(memlab, trace) == [(file, *line) for line in EXPECTED]


def test_every_allocation_has_a_line(memlab, packages):
    # GIVEN a library's thread that no line of the program called, and generated code without a caller
    script = memlab.folder / "train.py"
    script.write_text(
        dedent("""\
        import threading, gpulib
        thread = threading.Thread(target=gpulib.allocate, args=(1024,))
        thread.start()
        thread.join()
        scope = {"allocate": gpulib.hook}
        exec(compile("def made(*args):\\n allocate(*args)", "<eval_with_key>.5", "exec"), scope)
        thread = threading.Thread(target=scope["made"], args=(4096, 4096, 0, 0, 1))
        thread.start()
        thread.join()
        """)
    )
    # THEN the thread counts at the library's line, not the standard library's; the generated code at the standard library's
    # line
    trace = run(memlab, packages, script)
    (library, *of_library, size), (python, *_, python_size) = lines_of(memlab, trace)
    assert (library, of_library, size) == (str(packages / "gpulib.py"), ["allocate", 14], 1024)
    assert python.endswith("/threading.py") and python_size == 4096


def test_cells_have_their_notebook_numbers(memlab, packages):
    # GIVEN cells as IPython compiles them: for a notebook, on a terminal, within %%time, and after %timeit on a line
    core = packages / "IPython" / "core"
    core.mkdir(parents=True)
    (packages / "IPython" / "__init__.py").touch()
    (core / "__init__.py").touch()
    (core / "interactiveshell.py").write_text(
        dedent("""\
        class Compiler:
            def __init__(self):
                self._filename_map = {"/tmp/ipykernel_7/123.py": 3, "<ipython-input-5-0a1b>": 5}
        class InteractiveShell:
            _instance = None
            def __init__(self):
                self.compile = Compiler()
                cell, line = ("get_ipython().run_cell_magic('time', '', '1')", "get_ipython().run_line_magic('timeit', '1')")
                self.user_ns = {"In": ["", "", "", "", "", cell, "1\\n" + line]}
        InteractiveShell._instance = InteractiveShell()
        """)
    )
    script = memlab.folder / "kernel.py"
    script.write_text(
        dedent("""\
        import gpulib
        import IPython.core.interactiveshell
        def run(file, size):
            exec(compile(f"import gpulib\\ngpulib.allocate({size})", file, "exec"), {})
        run("/tmp/ipykernel_7/123.py", 1024)
        run("<ipython-input-4-0a1b2c3d>", 2048)
        run("<timed exec>", 4096)
        run("/tmp/ipykernel_7/456.py", 8192)
        numbers = IPython.core.interactiveshell.InteractiveShell._instance.compile._filename_map
        numbers["<ipython-input-6-0a1b>"] = 6
        run("<magic-timeit>", 16384)
        """)
    )
    # THEN lines have the number of their cell, and those that IPython does not know have their file
    trace = run(memlab, packages, script)
    expected = [("In[3]", 2, 1024), ("In[4]", 2, 2048), ("In[5]", 3, 4096), ("/tmp/ipykernel_7/456.py", 2, 8192)]
    expected.append(("In[6]", 3, 16384))
    assert lines_of(memlab, trace) == [(file, "<module>", line, size) for file, line, size in expected]


def test_endlessly_generated_code_is_merged_into_one_line(memlab, packages):
    # GIVEN a program that constantly generates code, each time under a new name, and keeps it (code that replaces freed
    # code, with its names, cannot be distinguished from it)
    script = memlab.folder / "made.py"
    script.write_text(
        dedent("""\
        import gpulib
        kept = []
        for number in range(5000):
            kept.append(compile("gpulib.allocate(512)", f"<made {number}>", "exec"))
            exec(kept[-1])
        """)
    )
    trace = run(memlab, packages, script)
    # THEN the first files are separate, and all later ones are merged
    files = [json.loads(line)["file"] for line in trace.read_text().splitlines() if line.startswith('{"frame"')]
    made = [file for file in files if file.startswith("<made")]
    assert len(made) == 4097
    assert [file for file in made if not file[6:-1].isdigit()] == ["<made #>"]


def test_library_lines_are_shown_if_the_programs_lines_only_call_them(memlab, packages):
    # GIVEN a program whose allocations are all made by a library
    script = memlab.folder / "train.py"
    script.write_text("import trainer.train\n")
    trace = run(memlab, packages, script)
    library = str(packages / "gpulib.py")

    def reported(*options):
        command = [memlab.command, "report", "--full", trace, *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    # THEN the report shows the library's lines and the reason, unless an option overrides it, and shortens nothing in a pipe
    assert "train.py:1 only calls them" in reported() and "gpulib.py:14  allocate" in reported()
    assert "gpulib.py" not in reported("--libraries=never") and "train.py:1" in reported("--libraries=never")
    # AND JSON has both
    report = memlab.report(trace)
    assert {(row["file"], row["whose"]) for row in report["lines"]} == {(str(script), "user")}
    assert {(row["file"], row["whose"]) for row in report["library_lines"]} == {(library, "library")}
    assert report["lines_shown"] == "library_lines"
