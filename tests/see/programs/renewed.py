"""Creates new modules and code at every step."""

import torch

x = torch.ones(64, 64, device="cuda", requires_grad=True)
for _ in range(400):
    loss = torch.nn.MSELoss()(x, torch.zeros_like(x))
    layer = torch.nn.Linear(64, 64, device="cuda")
    layer(x)
    exec(compile("y = torch.ones(256, device='cuda')", "<cell>", "exec"))
