"""The trace keeps the text of the lines that allocate memory, and of no others."""

import json

# A line longer than the kept length, one of a file that is edited while the program runs, and one in no file.
PROGRAM = """
import ctypes, pathlib
import edited
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
secret = "nobody's business"
def take(mebibytes):
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_uint64(mebibytes << 20)) == 0  # taken: ä
take(4)
pathlib.Path(edited.__file__).write_text("something = else\\n" * 9)
edited.take(lambda: take(8))
exec("take(16)")
"""

EDITED = """
def take(memory):
    memory()
"""


def sources(trace):
    records = [json.loads(line.strip(b"\0")) for line in trace.read_bytes().splitlines() if b'"source"' in line]
    return {(record["source"].rsplit("/", 1)[-1], record["line"]): record["text"] for record in records}


def test_lines_that_allocate_memory_are_kept(memlab):
    (memlab.folder / "edited.py").write_text(EDITED)
    (memlab.folder / "train.py").write_text(PROGRAM)
    # GIVEN a program that ends before the control thread reads the sources
    run = memlab.python("train.py", fresh=True)
    assert (run.code, run.errors) == (0, "")
    # THEN its lines and its callers' lines equal those of the file, and the rest of the file is not in the trace
    lines = PROGRAM.splitlines()
    kept = {("train.py", number): lines[number - 1] for number in (11, 12, 14, 15)}
    assert sources(run.trace) == kept
    assert "business" not in run.trace.read_text(errors="replace")
    # WHEN sources are switched off THEN the trace has none
    run.trace.unlink()
    (memlab.folder / "edited.py").write_text(EDITED)
    run = memlab.python("train.py", env={"MEMLAB_SOURCE": "0"})
    assert (run.code, run.errors) == (0, "")
    assert sources(run.trace) == {} and b"cuMemAlloc" in run.trace.read_bytes()
