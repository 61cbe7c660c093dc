"""Feeds two epochs, and measures what all processes of the feeder hold meanwhile: the growth of their PSS.

    feeder_memory.py KIND LIMIT BATCH WORKERS threads|processes [DEVICE]

KIND is `feeder` or `dataloader`, which feeds the same. PSS counts each page once, shared ones in parts. Pages of files are
left out: those of libraries are shared with every process that has loaded them, and our part grows when one of these ends.
What interpreters of worker processes take is in the first measurement, which is made when they have started and wait for the
first sample.
"""

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

SAMPLES, SHAPE = 192, (512, 512)  # 1 MiB of float32 each.
GO = Path("go")


def read(number):
    while not GO.exists():
        time.sleep(0.01)
    sample = np.empty(SHAPE, np.float32)
    sample.fill(number)
    time.sleep(0.002)  # As if it were decoded, so that it is held for a while.
    yield sample


def read_small(number):
    yield np.full(4, number, np.float32)


def label(number):
    return [number]


def processes():
    tree = [os.getpid()]
    for pid in tree:
        with contextlib.suppress(OSError):  # It, or one of its threads, has ended.
            for task in Path(f"/proc/{pid}/task").iterdir():
                tree += map(int, (task / "children").read_text().split())
    return tree


def pss():
    """Bytes of all processes that are in no file."""
    total = 0
    for pid in processes():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total


def settled():
    """What they take when it no longer changes: workers have imported everything."""
    before, now = -1, pss()
    while abs(now - before) > 64 << 10:
        time.sleep(1.5)
        before, now = now, pss()
    return now


class Samples:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        (sample,) = read(number)
        return sample, number


def warm_up(in_processes, device):
    """Runs the code once with samples of a few bytes, so that what it loads and imports is not taken for samples."""
    import memlab

    config = memlab.Config("1MiB", None, 64, (4,), (), None, "float32", "int64", batch_size=4, workers=1)
    with memlab.Feeder(config, range(64), range(64), read_small, label, processes=in_processes, device=device) as feeder:
        for _ in feeder:
            pss()


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
    most, stop = 0, threading.Event()

    def watch():
        nonlocal most
        while not stop.is_set():
            most = max(most, pss())
            time.sleep(0.002)

    if device:
        import torch

        torch.zeros(1, device=device[0])
    watching = [threading.Thread(target=watch), threading.Thread(target=watch)]
    watching[0].start()
    warm_up(how == "processes", *(device or [None]))
    stop.set()
    watching[0].join()
    feeder = loader(kind, int(limit), int(batch), int(workers), how == "processes", *(device or [None]))
    first = iter(feeder)  # Workers start, and wait.
    start = settled()
    most = 0
    stop.clear()
    watching[1].start()
    GO.touch()
    rows = 0
    for epoch in (first, feeder):
        for inputs, outputs in epoch:
            rows += len(inputs)
            assert device or (inputs[:, 0, 0] == outputs).all()
            time.sleep(0.002)
        del epoch, inputs, outputs
        first = None
    stop.set()
    watching[1].join()
    GO.unlink()
    # A simulated card's memory is the host's: what is on the card was written once, by batches of the same size.
    on_card = torch.cuda.memory_stats()["active_bytes.all.peak"] if device else 0
    Path("result").write_text(json.dumps({"grown_bytes": most - start - on_card, "rows": rows, "on_card_bytes": on_card}))


if __name__ == "__main__":
    main()
