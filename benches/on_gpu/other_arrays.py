"""Checks driver memory of CuPy, Numba and JAX: its category, its line, and the finding on JAX's pool."""

import importlib.util
import json

from harness import OWN_PROGRAMS, Failed, Skip, difference

LIBRARIES = ["cupy", "numba", "jax"]
PROGRAM = OWN_PROGRAMS / "library_arrays.py"


def check_library(harness, folder, library):
    if harness.simulated or importlib.util.find_spec(library) is None:
        return Skip("the simulated GPU runs no kernels" if harness.simulated else f"{library} is not installed")
    run = harness.python(folder, PROGRAM, library)
    if run.code != 0:
        raise Failed(run.errors[-2000:])
    held = json.loads(run.output.splitlines()[-1])
    report = harness.report(run.trace)
    bytes_of = {category["name"]: category["bytes_at_peak"] for category in report["categories"]}
    on_lines: dict[bool, int] = {}
    for line in report["lines"]:
        where = line["file"] or ""
        on_lines[where.endswith(PROGRAM.name)] = on_lines.get(where.endswith(PROGRAM.name), 0) + line["live_bytes_at_peak"]
    wrong = difference("bytes of other arrays", bytes_of["other_arrays"], held)
    wrong += difference("bytes of them on the program's lines", on_lines.get(True, 0), held)
    is_pool = any(finding["kind"] == "jax_pool" for finding in report["findings"])
    wrong += difference("a finding on JAX's pool", is_pool, library == "jax")
    harness.notes[f"other arrays {library}"] = bytes_of | {"findings": [f["what"] for f in report["findings"]]}
    return wrong
