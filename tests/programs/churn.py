"""Allocates and frees until it is killed; prints its progress."""

import sys

import torch

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
        if len(sys.argv) > 1 and number >= int(sys.argv[1]):
            break
