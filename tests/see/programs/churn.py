"""Allocates and frees, and prints its progress.

churn.py [COUNT [BYTES]]: ends after COUNT allocations (never, without it), and pauses while the traces in the folder
take BYTES or more together.
"""

import pathlib
import sys
import time

import torch

count = int(sys.argv[1]) if len(sys.argv) > 1 else None
room = int(sys.argv[2]) if len(sys.argv) > 2 else None


def trace_bytes():
    sizes = []
    for path in pathlib.Path().glob("*.jsonl*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # It was renamed.
            continue
    return sum(sizes)


kept = [torch.empty(1024, device="cuda")]
print("ready", flush=True)
number = 0
while True:
    kept.append(torch.empty(1024 + number % 7 * 512, device="cuda"))
    if len(kept) > 100:
        kept.pop(number * 7919 % 100)
    number += 1
    if number % 1000 == 0:
        print(number, flush=True)
        while room is not None and trace_bytes() >= room:
            time.sleep(0.01)
        if count is not None and number >= count:
            break
