"""Allocates and frees, and prints its progress.

churn.py [COUNT [BYTES]]: ends after COUNT allocations (never, without it), and pauses while the traces in the folder
take BYTES or more together.
"""

import sys

import recording
import torch

count = int(sys.argv[1]) if len(sys.argv) > 1 else None
room = int(sys.argv[2]) if len(sys.argv) > 2 else None


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
        if room is not None:
            recording.until_room(room)
        if count is not None and number >= count:
            break
