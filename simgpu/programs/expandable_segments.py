"""Expandable segments: torch reserves address space and maps physical memory into it piece by piece."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch
from torch import nn

MIB = 1 << 20

# GIVEN a block in an expandable segment, with real data
data = torch.arange(1 << 20)
block = data.cuda()
reserved = torch.cuda.memory_reserved()
assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())

# WHEN the segment grows
free_before = torch.cuda.mem_get_info()[0]
more = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
more.zero_()
# THEN the GPU's free memory is lower by the mapped bytes, and the data is unchanged
assert torch.cuda.mem_get_info()[0] == free_before - (torch.cuda.memory_reserved() - reserved)
assert torch.equal(block.cpu(), data)

# WHEN the memory is unmapped again
del more
torch.cuda.empty_cache()
# THEN that memory is free again
assert torch.cuda.mem_get_info()[0] == free_before - (torch.cuda.memory_reserved() - reserved)
assert torch.cuda.memory_reserved() <= reserved + 20 * MIB

model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
print("ok")
