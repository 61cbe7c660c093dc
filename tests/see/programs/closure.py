"""Trains a model with closures: LBFGS calls one many times a step, Adam once, as Lightning does.

Prints the line that calls the model and the line of the loss.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
x, y = torch.randn(512, 256, device="cuda"), torch.randn(512, 256, device="cuda")
# Results are meaningless on the simulated GPU, so LBFGS must not stop because it has converged.
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=-1, tolerance_change=-1)
adam = torch.optim.Adam(model.parameters(), foreach=False)


def closure():
    for parameter in model.parameters():
        parameter.grad = None
    predicted = model(x)
    loss = F.mse_loss(predicted, y)
    loss.backward()
    return loss


for optimizer in (lbfgs, adam):
    for _ in range(2):
        optimizer.step(closure)
line = closure.__code__.co_firstlineno
print(line + 3, line + 4, line + 5)
