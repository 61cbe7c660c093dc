"""Two devices: each has its own memory, and data moves between them. Run with --devices 2."""

import torch
from torch import nn

MIB = 1 << 20

assert torch.cuda.device_count() == 2
assert torch.cuda.can_device_access_peer(0, 1)

# GIVEN a model with its halves on two devices
first, second = nn.Linear(256, 256).to("cuda:0"), nn.Linear(256, 256).to("cuda:1")
# WHEN it trains
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
for _ in range(3):
    x = torch.randn(32, 256, device="cuda:0")
    loss = second(first(x).to("cuda:1")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
# THEN each device holds its half
for device in range(2):
    assert torch.cuda.memory_allocated(device) >= 3 * 256 * 256 * 4

# AND what one device uses stays free on the other
free = [torch.cuda.mem_get_info(device)[0] for device in range(2)]
block = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda:1")
assert torch.cuda.mem_get_info(0)[0] == free[0]
assert torch.cuda.mem_get_info(1)[0] == free[1] - 512 * MIB
del block

# AND bytes arrive unchanged
data = torch.arange(4096)
assert torch.equal(data.to("cuda:0").to("cuda:1").cpu(), data)
print("ok")
