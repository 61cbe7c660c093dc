"""Trains a multilayer perceptron and checks that the allocator's figures are exact."""

import gc

import torch
from torch import nn

MIB = 1 << 20

# GIVEN a model with parameters of known sizes
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
parameters = sum(p.numel() * p.element_size() for p in model.parameters())
assert torch.cuda.memory_allocated() == parameters, torch.cuda.memory_allocated()

# WHEN it trains
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    x = torch.randn(64, 512, device="cuda")
    loss = nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved())

# THEN only Adam's two moments remain once the batch is gone, and cuBLAS's workspaces, 32 MiB per thread with torch
# before 2.9
del x, loss
gc.collect()
allocated = torch.cuda.memory_allocated()
assert 3 * parameters <= allocated <= 3 * parameters + 80 * MIB, allocated

# AND the GPU's free memory is lower by the reserved bytes, the context and a little for cuBLAS
free, total = torch.cuda.mem_get_info()
outside = total - free - torch.cuda.memory_reserved()
assert 256 * MIB <= outside <= 300 * MIB, outside

# AND data survives the round trip
data = torch.arange(1000)
assert torch.equal(data.cuda().clone().cpu(), data)
print("ok")
