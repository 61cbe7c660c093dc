"""A multilayer perceptron trains, and the allocator's figures are exact."""

import gc

import torch
from torch import nn

MIB = 1 << 20

# GIVEN a model whose parameters' sizes are known
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

# THEN Adam's two moments are there, and little else once the batch is gone: cuBLAS's workspaces, of 32 MiB for each thread
# with torch before 2.9
del x, loss
gc.collect()
allocated = torch.cuda.memory_allocated()
assert 3 * parameters <= allocated <= 3 * parameters + 80 * MIB, allocated

# AND the card has lost what was reserved, the context and a little of cuBLAS's
free, total = torch.cuda.mem_get_info()
outside = total - free - torch.cuda.memory_reserved()
assert 256 * MIB <= outside <= 300 * MIB, outside

# AND data survives the way there and back
data = torch.arange(1000)
assert torch.equal(data.cuda().clone().cpu(), data)
print("ok")
