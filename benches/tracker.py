"""Measures queries of memlab.tracker with many live blocks.

    make bench BENCH=tools           (or, on a machine with a GPU: python benches/tracker.py)

Holds 100,000 blocks allocated by 50 lines, and prints the median time of `totals()` and `by_line()` with nothing new to
read, of `totals()` after one allocation, of `live_blocks()`, and of starting and ending a watch.
"""

import argparse
import statistics
import time

import memlab


def median_us(action, repeat):
    took = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    blocks = parser.parse_args().blocks
    import torch

    memlab.start()
    source = "\n".join(f"held += [torch.empty(128, device='cuda') for _ in range({blocks // 50})]" for _ in range(50))
    held: list[torch.Tensor] = []
    exec(compile(source, "allocations.py", "exec"), {"held": held, "torch": torch})
    tracker = memlab.tracker
    assert tracker.totals().allocated == torch.cuda.memory_allocated() == 512 * len(held)

    def allocate_and_ask():
        held.append(torch.empty(128, device="cuda"))
        tracker.totals()

    def allocate():
        held.append(torch.empty(128, device="cuda"))

    def watch():
        with memlab.watch():
            pass

    print(f"{blocks} live blocks of {len(tracker.by_line())} lines")
    print(f"= totals(): {median_us(tracker.totals, 10_000):.2f} µs")
    after = median_us(allocate_and_ask, 2000) - median_us(allocate, 2000)
    print(f"= totals() after a call: {after:.2f} µs")
    print(f"= by_line(): {median_us(tracker.by_line, 200):.2f} µs")
    print(f"= by_layer(): {median_us(tracker.by_layer, 20):.2f} µs")
    print(f"= live_blocks(): {median_us(tracker.live_blocks, 5):.2f} µs")
    print(f"= watch(): {median_us(watch, 20):.2f} µs")


if __name__ == "__main__":
    main()
