"""Compares the throughput of `memlab.Feeder` with PyTorch's DataLoader with pinned memory and as many workers.

    python benches/feeder.py [--device cuda] [--workers 0,2] [--runs 7] [--seconds 2] [--only images,tokens]

Both give batches of the same samples to the device, where nothing is computed: the time is that of reading, batching and
copying. The DataLoader has persistent workers and `pin_memory=True`, and its batches are copied with `non_blocking=True`.
Both are warmed up and timed alternately. Prints medians of samples per second, and the quartiles in brackets.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import memlab
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

STORE = Path("target/bench/feeder")


@dataclass(frozen=True)
class Workload:
    """Samples of one kind."""

    shape: tuple[int, ...]
    dtype: str
    samples: int
    batch: int
    read: Callable[[int], Any]
    what: str


@functools.cache
def tokens() -> Any:
    return np.load(STORE / "tokens.npy", mmap_mode="c")


def read_tokens(number: int) -> Any:
    return tokens()[number]


def read_image(number: int) -> Any:
    pixels = 3 * 224 * 224
    return np.fromfile(STORE / "images.bin", np.uint8, pixels, offset=number % 64 * pixels).reshape(3, 224, 224)


def read_packed(number: int) -> Any:
    packed = (STORE / f"packed-{number % 16}.z").read_bytes()
    return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(3, 224, 224)


def read_volume(number: int) -> Any:
    return np.fromfile(STORE / "volumes.bin", np.float32, 1 << 20, offset=number % 8 * (4 << 20)).reshape(1, 64, 128, 128)


WORKLOADS = {
    "tokens": Workload((1024,), "int64", 8192, 64, read_tokens, "1024 int64 of a memory-mapped file"),
    "images": Workload((3, 224, 224), "uint8", 2048, 64, read_image, "3×224×224 uint8 from a file"),
    "packed": Workload((3, 224, 224), "uint8", 512, 32, read_packed, "the same, unpacked with zlib"),
    "volumes": Workload((1, 64, 128, 128), "float32", 128, 8, read_volume, "4 MiB of float32 from a file"),
}


def write_store() -> None:
    """Writes the files that are read: small enough for the page cache, because disks are not compared."""
    STORE.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    np.save(STORE / "tokens.npy", chance.integers(0, 50_000, (8192, 1024)))
    images = chance.integers(0, 8, (64, 3, 224, 224)).astype(np.uint8)
    images.tofile(STORE / "images.bin")
    for number in range(16):
        (STORE / f"packed-{number}.z").write_bytes(zlib.compress(images[number].tobytes(), 1))
    chance.random((8, 1 << 20), np.float32).tofile(STORE / "volumes.bin")


class Samples(Dataset[Any]):
    """The samples, for a DataLoader."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __len__(self) -> int:
        return self.workload.samples

    def __getitem__(self, number: int) -> Any:
        return self.workload.read(number), number


def label(number: int) -> int:
    return number


def dataloader(workload: Workload, workers: int, device: str) -> Iterable[Any]:
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
    loader = DataLoader(Samples(workload), workload.batch, num_workers=workers, pin_memory=device != "cpu", **options)

    class ToDevice:
        def __iter__(self) -> Iterator[Any]:
            for inputs, outputs in loader:
                yield inputs.to(device, non_blocking=True), outputs.to(device, non_blocking=True)

    return ToDevice()


def feeder(workload: Workload, workers: int, device: str, processes: bool) -> memlab.Feeder:
    config = memlab.Config(
        "1GiB",
        None,
        workload.samples,
        workload.shape,
        (),
        None,
        workload.dtype,
        "int64",
        batch_size=workload.batch,
        workers=workers,
    )
    ids = range(workload.samples)
    return memlab.Feeder(config, ids, ids, workload.read, label, processes=processes, device=device)


def samples_per_second(loader: Iterable[Any], device: str, least_seconds: float) -> float:
    """Measures whole epochs, until the time is over."""
    samples, start = 0, time.perf_counter()
    while time.perf_counter() - start < least_seconds:
        for inputs, _ in loader:
            samples += len(inputs)
    if device != "cpu":
        torch.cuda.synchronize()
    return samples / (time.perf_counter() - start)


def figure(runs: list[float]) -> str:
    low, middle, high = statistics.quantiles(runs, n=4, method="inclusive")
    return f"{middle:,.0f} [{low:,.0f}, {high:,.0f}]"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--workers", default="0,2")
    arguments.add_argument("--runs", type=int, default=7)
    arguments.add_argument("--seconds", type=float, default=2)
    arguments.add_argument("--only", default=",".join(WORKLOADS))
    given = arguments.parse_args()
    write_store()
    print(f"PyTorch {torch.__version__}, {given.device}, {os.cpu_count()} cores, median of {given.runs} runs [quartiles]\n")
    print("| samples | workers | DataLoader, samples/s | Feeder, processes | to DataLoader | Feeder, threads |")
    print("|---|---|---|---|---|---|")
    for name in given.only.split(","):
        workload = WORKLOADS[name]
        for workers in map(int, given.workers.split(",")):
            loaders = {
                "DataLoader": dataloader(workload, workers, given.device),
                "processes": feeder(workload, workers, given.device, processes=True),
                "threads": feeder(workload, workers, given.device, processes=False),
            }
            rates: dict[str, list[float]] = {which: [] for which in loaders}
            for loader in loaders.values():
                samples_per_second(loader, given.device, 0.1)
            for _ in range(given.runs):
                for which, loader in loaders.items():
                    rates[which].append(samples_per_second(loader, given.device, given.seconds))
            ratio = statistics.median(rates["processes"]) / statistics.median(rates["DataLoader"])
            row = [workload.what, workers, figure(rates["DataLoader"]), figure(rates["processes"]), f"×{ratio:.2f}"]
            print("|", " | ".join(map(str, [*row, figure(rates["threads"])])), "|", flush=True)
            for which, values in rates.items():
                print(f"= {name}, {workers} workers, {which}: {statistics.median(values):.0f} samples/s")
            print(f"= {name}, {workers} workers, processes to DataLoader: {ratio:.2f}")
            for loader in loaders.values():
                if isinstance(loader, memlab.Feeder):
                    loader.close()


if __name__ == "__main__":
    main()
