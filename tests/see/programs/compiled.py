"""Programs that use torch.compile. Each writes PyTorch's own figures of the run to OUT.json.

    compiled.py CASE OUT.json [LIBRARY]   after loading LIBRARY

OUT: {"allocated": the live bytes at the end, "visible": TorchDynamo's hooks as the program sees them, "counters":
TorchDynamo's, "truth": see `compiled_truth.py`, "torch": PyTorch's version}.
"""

import ctypes
import json
import sys

import compiled_truth
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

case, out = sys.argv[1:3]
WIDTH, CLASSES = 64, 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x * self.scale).flatten(0, 1), labels.flatten())


def batch():
    return torch.ones(16, 32, WIDTH, device="cuda"), torch.zeros(16, 32, dtype=torch.long, device="cuda")


def train(model, rounds=3):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(rounds):
        optimizer.zero_grad()
        model(*batch()).backward()
        optimizer.step()
    return model, optimizer


def eager():
    return train(Net().cuda())


def whole():
    """Compiles the whole model."""
    return train(torch.compile(Net().cuda()))


def regional():
    """Compiles each layer separately."""
    model = Net().cuda()
    for block in model.blocks:
        block.compile()
    return train(model)


def function():
    """Compiles a function that calls a model."""
    model = Net().cuda()

    @torch.compile
    def loss(x, labels):
        return model(x, labels) * 2

    for _ in range(3):
        loss(*batch()).backward()
    return model


def captured():
    """Compiled autograd captures the backward, and compiles it too."""
    torch._dynamo.config.compiled_autograd = True
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    @torch.compile
    def step(x, labels):
        model(x, labels).backward()

    for _ in range(3):
        optimizer.zero_grad()
        step(*batch())
        optimizer.step()
    return model, optimizer


def inference():
    model = torch.compile(Net().cuda().eval())
    with torch.no_grad():
        for _ in range(2):
            model(*batch())
    return model


def reduce_overhead():
    return train(torch.compile(Net().cuda(), mode="reduce-overhead"), rounds=4)


class Cubic(torch.optim.Optimizer):
    """An optimizer whose step allocates memory."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                gradient = parameter.grad
                parameter.sub_(gradient @ (gradient.T @ gradient))


def compiled_optimizer():
    model = Net().cuda()
    optimizer = Cubic([model.blocks[0].up.weight])
    step = torch.compile(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        model(*batch()).backward()
        step()
    return model, optimizer


def checkpointing():
    class Checkpointed(Net):
        def forward(self, x, labels):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    return train(torch.compile(Checkpointed().cuda()))


def breaking():
    """A graph break, and a shape that depends on data."""

    class Breaking(Net):
        def forward(self, x, labels):
            x = self.blocks[0](x)
            torch._dynamo.graph_break()
            x = self.blocks[1](x)
            kept = x.flatten(0, 1)[labels.flatten() == 0]
            kept = self.blocks[2](kept)
            return self.head(kept).square().mean()

    return train(torch.compile(Breaking().cuda()))


def hugging_face():
    import transformers

    sizes = {"n_layer": 2, "n_embd": WIDTH, "n_head": 2, "vocab_size": 512, "n_positions": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).cuda()
    fast, optimizer = torch.compile(model), torch.optim.AdamW(model.parameters())
    tokens = torch.ones(4, 32, dtype=torch.long, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        fast(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return model, optimizer


for library in sys.argv[3:]:
    ctypes.CDLL(library)
truth = compiled_truth.recorded()
torch.manual_seed(0)
held = globals()[case]()
torch.cuda.synchronize()
counters = {name: dict(known) for name, known in torch._dynamo.utils.counters.items()}
# Hooks as a program sees them: its own hook's number.
handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda *_: None)
found = {"allocated": torch.cuda.memory_allocated(), "visible": handle.id, "counters": counters, "truth": truth}
found["torch"] = [int(part) for part in torch.__version__.split(".")[:2]]
with open(out, "w") as file:
    json.dump(found, file)
