"""Multiplies matrices without room for cuBLAS's workspace, makes room, and multiplies again. Prints the bytes of each
allocation, one a line."""

import torch

a = torch.ones(64, 64, device="cuda")
hog = []
for size in (64 << 20, 2 << 20):
    try:
        while True:
            hog.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
try:
    a @ a
    raise SystemExit("there was room for the workspace")
except torch.cuda.OutOfMemoryError:
    hog.clear()
torch.cuda.empty_cache()
before = torch.empty(1000 * 512, dtype=torch.uint8, device="cuda")
product = a @ a
after = torch.empty(1001 * 512, dtype=torch.uint8, device="cuda")
print(before.numel(), product.numel() * 4, after.numel())
