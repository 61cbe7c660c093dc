"""CUDA graphs: capture, replay and the private memory pool."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
static = torch.randn(16, 128, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=False)
    loss = model(static).square().mean()
    loss.backward()
    optimizer.step()
    return loss


# GIVEN a warmed-up training step
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)

# WHEN it is captured
graph = torch.cuda.CUDAGraph()
assert not torch.cuda.is_current_stream_capturing()
with torch.cuda.graph(graph):
    assert torch.cuda.is_current_stream_capturing()
    loss = step()
assert not torch.cuda.is_current_stream_capturing()

# THEN it can be replayed with new input
for _ in range(3):
    static.copy_(torch.randn(16, 128))
    graph.replay()
torch.cuda.synchronize()
loss.item()

# AND torch's own wrapper works
graphed = torch.cuda.make_graphed_callables(nn.Linear(64, 64).cuda(), (torch.randn(8, 64, device="cuda"),))
graphed(torch.randn(8, 64, device="cuda")).sum().backward()

# AND a call that a capture forbids ends it with an error, as on a real GPU
broken = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(broken):
        torch.cuda.synchronize()
except RuntimeError as error:
    assert "captur" in str(error), error
else:
    raise AssertionError("synchronising inside a capture must fail")
assert torch.ones(4).cuda().cpu().sum().item() == 4.0
print("ok")
