"""Unusual models and optimizers.

    tagged.py MODE OUT.json

threads: four models, each trained in its own thread. compiled: a compiled optimizer. OUT: {"allocated": PyTorch's figure,
"models": for each model {address: [category, name, bytes]} of its tensors}, at the end.
"""

import json
import sys
import threading
import time

import recording
import torch
import torch.nn as nn

mode, out = sys.argv[1:]
trained = []


class FirstPause(nn.Module):
    """Waits at its first call until memlab has named the layers. memlab does that on the main thread, while they run."""

    was_called = False

    def forward(self, x):
        if not self.was_called:
            recording.until_named()
        self.was_called = True
        return x


def make(width):
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)], FirstPause()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    trained.append((model, optimizer))
    return model, optimizer


def train(model, optimizer, step, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, model[0].in_features, device="cuda")).sum().backward()
        step()


def threads():
    together = threading.Barrier(4)

    def work(width):
        model, optimizer = make(width)
        together.wait()
        train(model, optimizer, optimizer.step, 40)

    workers = [threading.Thread(target=work, args=(width,)) for width in (32, 64, 96, 128)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.002)


def compiled():
    from torch._dynamo.utils import counters

    model, optimizer = make(32)
    train(model, optimizer, torch.compile(optimizer.step, backend="eager"), 12)
    print(dict(counters["graph_break"]), counters["stats"]["unique_graphs"])


globals()[mode]()
models = []
for model, optimizer in trained:
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors["parameter", name] = parameter
        tensors["gradient", name] = parameter.grad
        tensors |= {("optimizer_state", f"{name}:{key}"): value for key, value in optimizer.state[parameter].items()}
    models.append(
        {
            tensor.data_ptr(): [category, name, tensor.numel() * tensor.element_size()]
            for (category, name), tensor in tensors.items()
            if tensor.is_cuda
        }
    )
with open(out, "w") as file:
    json.dump({"allocated": torch.cuda.memory_allocated(), "models": models}, file)
