"""Makes random requests to PyTorch's allocator and to memlab's model of it, and compares counters, segments and blocks.

    allocator_twin.py FIRST_SEED SEEDS REQUESTS [--pools]

Reads settings from PYTORCH_CUDA_ALLOC_CONF and MEMORY_FRACTION. Prints how often the card was full, because a test that
never fills it would prove little.
"""

import os
import random
import sys

import torch
from memlab import _native

MIB = 1 << 20
BORDERS = [511, 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 20 * MIB]
COUNTERS = [
    f"{name}.all.{figure}"
    for name in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
    for figure in ("current", "peak")
]


def random_size(rng):
    share = rng.random()
    if share < 0.35:
        return rng.randrange(1, 1 << rng.randrange(1, 20))
    if share < 0.45:
        return rng.choice(BORDERS)
    if share < 0.75:
        return rng.randrange(MIB, 12 * MIB)
    if share < 0.97:
        return rng.randrange(8 * MIB, 60 * MIB)
    return rng.randrange(60 * MIB, 400 * MIB)


def segments_of_torch():
    return [
        (
            segment["stream"],
            tuple(segment["segment_pool_id"]),
            segment["segment_type"] == "small",
            segment["is_expandable"],
            [
                (block["size"], block["requested_size"] if block["state"] != "inactive" else 0, block["state"])
                for block in segment["blocks"]
            ],
        )
        for segment in sorted(torch.cuda.memory_snapshot(), key=lambda segment: segment["address"])
    ]


class Twins:
    def __init__(self, seed, streams, settings, pools):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_reserved() == 0
        free, total = torch.cuda.mem_get_info()
        self.rng = random.Random(seed)
        self.streams = streams
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        self.model = _native.AllocatorModel(settings, total, free, version)
        self.places = {}
        self.pool = torch.cuda.MemPool() if pools else None
        self.live = {}
        self.pending = []
        self.next_id = 0
        self.out_of_memory = 0
        self.retries_before = torch.cuda.memory_stats()["num_alloc_retries"]

    def ask_model(self, *request):
        failed, _ = self.model.apply([request], True, False)
        return not failed

    def place(self, stream, pool):
        if (stream, pool) not in self.places:
            self.places[stream, pool] = self.model.place(stream, pool)
        return self.places[stream, pool]

    def allocate(self):
        size = random_size(self.rng)
        (stream,) = self.rng.choices(self.streams, [8, 2, 1])
        in_pool = self.pool is not None and self.rng.random() < 0.3
        # PyTorch first queries which other streams have finished; the simulated card's always have.
        for name in self.pending:
            self.ask_model("free_completed", name, 0, 0)
        self.pending.clear()
        name, self.next_id = self.next_id, self.next_id + 1
        try:
            with torch.cuda.stream(stream):
                if in_pool:
                    with torch.cuda.use_mem_pool(self.pool):
                        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                else:
                    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            self.live[name] = tensor
        except torch.cuda.OutOfMemoryError:
            self.out_of_memory += 1
        place = self.place(stream.cuda_stream, self.pool.id if in_pool else (0, 0))
        fits = self.ask_model("alloc", name, size, place)
        assert fits == (name in self.live), f"{size} bytes: the model says that they fit: {fits}"

    def free(self):
        name = self.rng.choice(list(self.live))
        tensor = self.live.pop(name)
        if self.rng.random() < 0.1:
            tensor.record_stream(self.rng.choice(self.streams))
        before = torch.cuda.memory_stats()["active_bytes.all.current"]
        del tensor
        if torch.cuda.memory_stats()["active_bytes.all.current"] == before:
            self.ask_model("free_requested", name, 0, 0)
            self.pending.append(name)
        else:
            self.ask_model("free", name, 0, 0)

    def step(self):
        share = self.rng.random()
        if share < 0.55 or not self.live:
            self.allocate()
        elif share < 0.98:
            self.free()
        else:
            torch.cuda.empty_cache()
            self.ask_model("empty_cache", 0, 0, 0)
            self.pending.clear()

    def compare(self, with_segments):
        ours, theirs = self.model.counters(), torch.cuda.memory_stats()
        for name in COUNTERS:
            assert ours[name] == theirs[name], f"{name}: {ours[name]} in the model, {theirs[name]} in PyTorch"
        assert ours["num_alloc_retries"] == self.retries()
        if with_segments:
            # By address. The addresses themselves differ: the model's begin elsewhere.
            assert [segment[1:] for segment in self.model.segments()] == segments_of_torch()

    def retries(self):
        return torch.cuda.memory_stats()["num_alloc_retries"] - self.retries_before


def main():
    first, seeds, requests = map(int, sys.argv[1:4])
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    torch.cuda.init()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    if "MEMORY_FRACTION" in os.environ:
        fraction = os.environ["MEMORY_FRACTION"]
        torch.cuda.set_per_process_memory_fraction(float(fraction))
        settings = ",".join(filter(None, [settings, f"per_process_memory_fraction:{fraction}"]))
    full = 0
    for seed in range(first, first + seeds):
        twins = Twins(seed, streams, settings, "--pools" in sys.argv)
        for step in range(requests):
            twins.step()
            try:
                twins.compare(with_segments=step % 10 == 0)
            except AssertionError as error:
                raise SystemExit(f"seed {seed}, request {step}: {error}") from None
        full += twins.out_of_memory + twins.retries()
        del twins
        torch.cuda.synchronize()
    print(full)


if __name__ == "__main__":
    main()
