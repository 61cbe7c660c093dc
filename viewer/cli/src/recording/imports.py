"""Calls functions after modules were imported. Used by the files that Python runs at its start, as `sitecustomize`."""

import importlib
import importlib.util
import os
import sys


class WhenImported:
    """Calls functions after modules were imported, by name of the module."""

    def __init__(self, calls):
        self.calls = calls

    def find_spec(self, name, path=None, target=None):
        call = self.calls.pop(name, None)
        if call is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                call(module)

            spec.loader.exec_module = exec_module
        return spec


def run_other_sitecustomize():
    """Runs the environment's own `sitecustomize`, which memlab's shadows."""
    here = os.path.dirname(os.path.abspath(__file__))
    this = sys.modules.pop("sitecustomize")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError:
        sys.modules["sitecustomize"] = this
