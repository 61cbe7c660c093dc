"""Runs inside a Python program that `memlab plan` records: notes allocator requests, and ends the program.

Python runs this file at its start, as `sitecustomize`, in the program and in each Python that it starts. PyTorch itself
keeps the notes (`torch.cuda.memory._record_memory_history`), with the sizes before rounding. libmemlab.so writes them to
the trace. Two environment variables bound the run: MEMLAB_PLAN_STEPS, the number of optimizer steps to record, and
MEMLAB_PLAN_SECONDS, the longest time until the program is ended.
"""

import array
import atexit
import contextlib
import ctypes
import importlib
import os
import sys
import threading

import _memlab_alone as alone
import _memlab_generation as generation
import _memlab_imports as imports
import _memlab_lightning as lightning
import _memlab_paging as paging
import _memlab_phases as phases

ALLOCATION, FREE_REQUESTED, FREE_COMPLETED, FREE, SEGMENT_FREE, OUT_OF_MEMORY = range(6)
PHASE = 6
KINDS = {
    "alloc": ALLOCATION,
    "free_requested": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
    "segment_free": SEGMENT_FREE,
    "segment_unmap": SEGMENT_FREE,
    "oom": OUT_OF_MEMORY,
}
# A few hundred MiB of notes; a training step needs about ten thousand.
MOST_ENTRIES = 4_000_000
STEPS = int(os.environ.get("MEMLAB_PLAN_STEPS", "0"))
SECONDS = float(os.environ.get("MEMLAB_PLAN_SECONDS", "0"))
HAS_PHASES = bool(os.environ.get("MEMLAB_PLAN_PHASES"))
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Recording:
    def __init__(self, torch):
        self.torch = torch
        self.pid = os.getpid()
        self.steps = {}  # by optimizer
        self.lock = threading.Lock()
        self.is_written = False
        self.phases = phases.Phases(torch, os.path.join(FOLDER, f"scratch-{self.pid}"), self.end)

    def begin(self):
        """Called when the program uses the GPU for the first time."""
        if os.getpid() != self.pid:
            return
        self.torch.cuda.memory._record_memory_history(context=None, max_entries=MOST_ENTRIES)
        atexit.register(self.at_exit)
        if SECONDS:
            timer = threading.Timer(SECONDS, self.end)
            timer.daemon = True
            timer.start()

    def after_step(self, optimizer, *_arguments):
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        # `<=` below records one more step: libmemlab.so notes the end of a step after this call.
        if not STEPS or os.getpid() != self.pid:
            return
        if self.steps[id(optimizer)] <= STEPS and not self.phases.is_over:
            self.phases.after_step()
        elif HAS_PHASES:
            self.phases.after_last_step()
        else:
            self.end()

    # Keeps torch.compile from compiling or tracing the method.
    after_step._torchdynamo_disable = True

    def end(self):
        """Ends the program here: no later code and no cleanup runs."""
        if os.getpid() != self.pid:
            return
        self.write()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def at_exit(self):
        """Called when the program ends normally."""
        self.write()
        if self.phases.is_over:
            self.end()  # Failures after the recorded steps do not matter.

    def write(self):
        with self.lock:
            if self.is_written or os.getpid() != self.pid:
                return
            self.is_written = True
            self.phases.finish()
            paging.finish()
            write = ctypes.CDLL(None).memlab_requests
            write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
            write.restype = None
            snapshot = self.torch.cuda.memory._snapshot()
            for device, trace in enumerate(snapshot["device_traces"]):
                marks = [(allocations[device], phase) for allocations, phase in self.phases.marks]
                entries = entries_of(trace, private_pools(snapshot, device), marks)
                address, count = entries.buffer_info()
                write(device, address, count // 6)


def entries_of(trace, pools, marks):
    """Returns six numbers for each entry, as docs/trace-format.md describes them for `requests`."""
    entries = array.array("Q")
    allocations = 0
    marks = iter([*marks, (sys.maxsize, 0)])
    begins, phase = next(marks)
    for entry in trace:
        kind = KINDS.get(entry["action"])
        if kind is None:
            continue
        while kind == ALLOCATION and allocations == begins:
            entries.extend((PHASE, phase, 0, 0, 0, 0))
            begins, phase = next(marks)
        allocations += kind == ALLOCATION
        address = entry.get("addr", 0)  # "oom" has none.
        if kind == FREE_COMPLETED and entries[-6:-4].tolist() == [FREE_REQUESTED, address]:
            entries[-6] = FREE
            continue
        # Before PyTorch 2.9, an entry does not name its pool.
        pool = entry.get("pool_id") or next((pool for begin, end, pool in pools if begin <= address < end), (0, 0))
        entries.extend((kind, address, entry["size"], entry["stream"], *pool))
    while begins != sys.maxsize:
        entries.extend((PHASE, phase, 0, 0, 0, 0))
        begins, phase = next(marks)
    return entries


def private_pools(snapshot, device):
    """Returns (begin, end, id) of each segment of a private pool."""
    return [
        (segment["address"], segment["address"] + segment["total_size"], segment["segment_pool_id"])
        for segment in snapshot["segments"]
        if segment["device"] == device and tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
    ]


def imported(torch):
    if not hasattr(ctypes.CDLL(None), "memlab_requests") or not hasattr(torch.cuda, "memory"):
        return
    recording = Recording(torch)
    if alone.is_simulated():
        alone.patch(torch)
    if HAS_PHASES:
        recording.phases.patch()
        when_imported.calls["safetensors.torch"] = recording.phases.patch_safetensors
        when_imported.calls["torch.distributed.checkpoint.state_dict_saver"] = recording.phases.patch_distributed
        when_imported.calls["transformers.trainer_callback"] = recording.phases.patch_trainer
    when_imported.calls.update(lightning.calls(recording.phases))
    when_imported.calls.update(paging.start(torch))
    torch.cuda._lazy_call(recording.begin)
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(recording.after_step)


when_imported = imports.WhenImported({"torch": imported})


if __name__ == "sitecustomize":
    if alone.is_simulated():
        alone.begin()
        # Its checks of values would fail.
        when_imported.calls["torch.distributions.distribution"] = lambda it: it.Distribution.set_default_validate_args(False)
        when_imported.calls["torch.distributed.launcher.api"] = alone.patch_launcher
        when_imported.calls["transformers.generation.utils"] = generation.patch
        when_imported.calls["torch.distributed.checkpoint.default_planner"] = alone.patch_checkpoints
    sys.meta_path.insert(0, when_imported)
    imports.run_other_sitecustomize()
