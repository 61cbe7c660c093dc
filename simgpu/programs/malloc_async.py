"""torch with cudaMallocAsync: the driver's stream-ordered pools instead of torch's allocator."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"

import torch
from torch import nn

MIB = 1 << 20

assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(32, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

# GIVEN a large block
before = torch.cuda.mem_get_info()[0]
block = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
assert torch.cuda.mem_get_info()[0] == before - 512 * MIB
# WHEN it is freed, THEN the pool keeps it until the cache is emptied
del block
assert torch.cuda.mem_get_info()[0] == before - 512 * MIB
torch.cuda.empty_cache()
assert torch.cuda.mem_get_info()[0] >= before
data = torch.arange(1000)
assert torch.equal(data.cuda().cpu(), data)
print("ok")
