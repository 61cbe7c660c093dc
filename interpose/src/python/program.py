"""Finds where the program's code is, and which cells of a notebook it comes from, which takes Python's help.

Embedded in libmemlab.so and run inside the traced program, on its main thread, like agent.py, and bound by the same
rules. It reads dictionaries of modules and objects and calls nothing of the program's.

`native` has: software(name, version, root), code(kind, root), frame(id, file, line, function).
"""

import os
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # guards.py is run before this file, in the same namespace.
    from guards import _dictionary, _Harmless

# Programs that run other programs: the code that they call is the program.
# fmt: off
_LAUNCHERS = frozenset((
    "IPython", "_pytest", "accelerate", "bpython", "celery", "colab_kernel_launcher", "coverage", "debugpy",
    "deepspeed", "google", "horovod", "horovodrun", "ipykernel", "ipykernel_launcher", "ipyparallel", "jupyter",
    "jupyter_client", "jupyter_core", "jupyterlab", "kernprof", "lightning_app", "line_profiler", "marimo", "memlab",
    "memray", "nbclient", "nbconvert", "notebook", "papermill", "pdb", "pluggy", "ptpython", "pudb", "pytest", "ray",
    "scalene", "streamlit", "torch", "torchrun", "viztracer", "xdist",
))
# fmt: on

_PACKAGES = ("site-packages", "dist-packages")

# File names that IPython gives to code compiled by a magic such as %%time.
_TIMED = ("<timed exec>", "<timed eval>", "<magic-timeit>")


def _text(value):
    return value if type(value) is str else ""


def _in_packages(file):
    """The parts of a file's path below the folder that packages are installed in; none if it is not in one."""
    parts = file.split("/")
    places = [index for index, part in enumerate(parts) if part in _PACKAGES]
    return parts[places[-1] + 1 :] if places else []


def _root_of(file):
    """The installed package, or single module, that contains a file; "" if the file is not the program's."""
    parts = _in_packages(file)
    if not parts or parts[0].partition(".")[0] in _LAUNCHERS:
        return ""
    return "/".join(file.split("/")[: 1 - len(parts)] if len(parts) > 1 else file.split("/"))


def _programs():
    """The roots of installed code that is the program: the module that `python -m` ran, an installed script, or the
    package that a command calls."""
    main = _dictionary(sys.modules.get("__main__"))
    file = _text(main.get("__file__"))
    if not file:
        return []
    file = os.path.abspath(file)
    if _in_packages(file):
        return [_root_of(file)]
    commands = {os.path.dirname(os.path.abspath(sys.executable)), os.path.join(sys.prefix, "bin")}
    commands.add(os.path.join(os.path.expanduser("~"), ".local", "bin"))
    if os.path.dirname(file) not in commands:
        return []
    # `from trainer.command import main`, as in the commands that pip writes.
    called = {_text(value.__module__) for value in main.values() if type(value) is types.FunctionType}
    modules = [_dictionary(sys.modules.get(name)) for name in called if name != "__main__"]
    return [_root_of(_text(module.get("__file__"))) for module in modules]


def _shell():
    """The attributes of IPython's shell, if the program runs in one."""
    module = _dictionary(sys.modules.get("IPython.core.interactiveshell"))
    kind = module.get("InteractiveShell")
    return _dictionary(type.__getattribute__(kind, "__dict__").get("_instance")) if isinstance(kind, type) else {}


def _lines_before(shell, number):
    """The number of lines in a cell before the code that its magic compiles: %%time has a separate line, %time has
    not."""
    cells = shell.get("user_ns")
    cells = dict.get(cells, "In") if isinstance(cells, dict) else None
    text = _text(cells[number]) if type(cells) is list and number < len(cells) else ""
    lines = text.split("\n")
    magics = [index for index, line in enumerate(lines) if "run_line_magic('time" in line]
    return magics[0] if magics else 1


class Program:
    def __init__(self, native):
        self.native = native
        native.software("python", sys.version.split()[0], os.path.dirname(os.__file__))
        for root in sorted({root for root in _programs() if root}):
            native.code("program", root)
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            root = os.environ.get(variable)
            if root:
                native.code("generated", os.path.abspath(root))

    def name_cells(self, frames):
        """Names frames of a notebook's cells as the notebook does. `frames`: (frame id, file, line or 0, function)."""
        with _Harmless():
            shell = _shell()
            numbers = _dictionary(shell.get("compile")).get("_filename_map")
            # Code that a magic compiles runs at once, in the cell that was compiled last.
            counts = dict.copy(numbers).values() if type(numbers) is dict else ()
            now = max((count for count in counts if type(count) is int), default=None)
            for frame, file, line, function in frames:
                is_timed = file in _TIMED
                number = now if is_timed else numbers.get(file) if type(numbers) is dict else None
                if type(number) is int:
                    before = _lines_before(shell, number) if is_timed else 0
                    self.native.frame(frame, f"In[{number}]", line + before, function)


def start(native):
    with _Harmless():
        return Program(native)
    return None
