"""Feeds two epochs and measures the memory of all processes of the feeder meanwhile: the growth of their PSS.

    feeder_memory.py KIND LIMIT BATCH WORKERS threads|processes [DEVICE]

KIND is `feeder`, or `dataloader` with the same data. PSS counts each page once and splits shared pages. File pages are
excluded: all processes that load a library share its pages, so one process's part grows when another process ends. The first
measurement includes the interpreters of the worker processes, which have started and wait for the first sample.

A separate process measures (`feeder_memory.py watch PID`). It stops the others while it counts their pages, so that no page
moves between them.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SAMPLES, SHAPE = 192, (512, 512)  # 1 MiB of float32 each.
GATE = Path("gate")  # Locked until the first measurement ends: readers wait for it.


def read(number):
    with GATE.open() as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    sample = np.empty(SHAPE, np.float32)
    sample.fill(number)
    time.sleep(0.002)  # Stands in for decoding, so that other readers overlap.
    yield sample


def read_small(number):
    yield np.full(4, number, np.float32)


def label(number):
    return [number]


def descendants(pid):
    """A process and all its descendants, except the calling process."""
    tree = [pid]
    for one in tree:
        with contextlib.suppress(OSError):  # The process, or one of its threads, has ended.
            for task in Path(f"/proc/{one}/task").iterdir():
                tree += [child for child in map(int, (task / "children").read_text().split()) if child != os.getpid()]
    return tree


def threads(pids):
    """State and voluntary context switches of each thread."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                lines = (line.partition(":") for line in (task / "status").read_text().splitlines())
                fields = {name: text.split()[0] for name, _, text in lines if text.split()}
                found[task.name] = fields["State"], fields["voluntary_ctxt_switches"]
    return found


@contextlib.contextmanager
def stopped(pid):
    """A block in which no process of the tree runs."""
    done = []
    try:
        while new := [one for one in descendants(pid) if one not in done]:
            for one in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGSTOP)
            done += new
            while any(state not in "TZX" for state, _ in threads(new).values()):
                time.sleep(0.001)
        yield done
    finally:
        for one in reversed(done):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def held(pid):
    """Bytes of all processes that belong to no file."""
    total = 0
    with stopped(pid) as tree:
        for one in tree:
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total


def wait_for_rest(pid):
    """Waits until all threads sleep and none has run in between: workers have finished their imports."""
    before = None
    while (now := threads(descendants(pid))) != before or any(state != "S" for state, _ in now.values()):
        before = now
        time.sleep(0.05)


def watch(pid):
    """Prints the memory at rest for each input line, then the peak until the next line."""
    sys.stdin.readline()
    wait_for_rest(pid)
    print(held(pid), flush=True)
    most, pause = 0, 0
    while not select.select([sys.stdin], [], [], pause)[0]:
        began = time.monotonic()
        most = max(most, held(pid))
        pause = time.monotonic() - began  # Lets the other processes run.
    print(max(most, held(pid)), flush=True)


class Samples:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        (sample,) = read(number)
        return sample, number


def warm_up(in_processes, device):
    """Runs the code once with samples of a few bytes, so that loaded and imported code does not count as samples."""
    import memlab

    config = memlab.Config("1MiB", None, 64, (4,), (), None, "float32", "int64", batch_size=4, workers=1)
    with memlab.Feeder(config, range(64), range(64), read_small, label, processes=in_processes, device=device) as feeder:
        for _ in feeder:
            pass


def loader(kind, limit, batch, workers, in_processes, device):
    if kind == "dataloader":
        from torch.utils.data import DataLoader

        options = {"persistent_workers": True, "multiprocessing_context": "spawn"} if workers else {}
        return DataLoader(Samples(), batch, num_workers=workers, **options)
    import memlab

    config = memlab.Config(
        limit,
        None,
        SAMPLES,
        SHAPE,
        (),
        None,
        "float32",
        "int64",
        preferred_batch_size=batch,
        batch_size=batch,
        workers=workers,
    )
    return memlab.Feeder(config, range(SAMPLES), range(SAMPLES), read, label, processes=in_processes, device=device)


def main():
    kind, limit, batch, workers, how, *device = sys.argv[1:]  # The limit in bytes.
    if device:
        import torch

        torch.zeros(1, device=device[0])
    warm_up(how == "processes", *(device or [None]))
    command = [sys.executable, __file__, "watch", str(os.getpid())]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measured():
        watcher.stdin.write("\n")
        watcher.stdin.flush()
        return int(watcher.stdout.readline())

    feeder = loader(kind, int(limit), int(batch), int(workers), how == "processes", *(device or [None]))
    with GATE.open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        first = iter(feeder)  # Workers start and wait.
        start = measured()
    rows = 0
    for epoch in (first, feeder):
        for inputs, outputs in epoch:
            rows += len(inputs)
            assert device or (inputs[:, 0, 0] == outputs).all()
            time.sleep(0.002)
        first = None
    grown = measured() - start
    del epoch, inputs, outputs
    watcher.communicate()
    # A simulated card's memory is host memory, so its peak is subtracted: batches of the same size have written all of it.
    on_card = torch.cuda.memory_stats()["active_bytes.all.peak"] if device else 0
    Path("result").write_text(json.dumps({"grown_bytes": grown - on_card, "rows": rows, "on_card_bytes": on_card}))


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        watch(int(sys.argv[2]))
    else:
        main()
