"""Shape H: models with features that are easy to page incorrectly. Compares outputs; does not measure time."""

import copy
import os
import threading
from typing import Any

import methods
import networks
import torch
import torch.nn.functional as F
from torch import nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class Attending(nn.Module):
    """nn.MultiheadAttention reads its output layer's weight without calling the layer."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.after = nn.Linear(32, 32)

    def forward(self, x):
        return self.after(self.attention(x, x, x, need_weights=False)[0])


class Encoder(nn.Module):
    """nn.TransformerEncoderLayer has a fast path that reads all of its children's weights."""

    def __init__(self):
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3)

    def forward(self, x):
        return self.layers(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(64, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.middle(self.embedding((x[..., 0].abs() * 20).long() % 64)))


class Direct(nn.Module):
    """Uses the embedding's weight as the head, without a separate module."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(64, 32), nn.Linear(32, 32)

    def forward(self, x):
        ids = (x[..., 0].abs() * 20).long() % 64
        return F.linear(self.middle(self.embedding(ids)), self.embedding.weight)


class Keyworded(nn.Module):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, *, x, scale=1.0):
            return {"y": self.linear(x) * scale}

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList(self.Inner() for _ in range(3))

    def forward(self, x):
        for inner in self.inner:
            x = inner(x=x, scale=0.5)["y"]
        return x


class Buffered(nn.Module):
    """Buffers, one of them not persistent, and a parameter of a module that has children."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.register_buffer("shift", torch.randn(32))
        self.register_buffer("scale", torch.randn(32), persistent=False)
        self.token = nn.Parameter(torch.randn(1, 1, 32))

    def forward(self, x):
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) * self.scale + self.shift
        return self.norm(self.linear(x).transpose(1, 2))


class Branching(nn.Module):
    """Chooses the layers to run by the data."""

    def __init__(self):
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        for left, right in zip(self.left, self.right, strict=True):
            x = left(x) if x.sum() > 0 else right(x)
            x = -x
        return x


class Adapted(nn.Module):
    """Applies LoRA, unmerged."""

    def __init__(self):
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(32, 4, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(4, 32, bias=False) for _ in range(3))

    def forward(self, x):
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            x = base(x) + up(down(x))
        return x


def once(model, inputs):
    return [model(x) for x in inputs]


def edited(model, inputs):
    """Changes the weights between two forwards."""
    first = model(inputs[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return [first, model(inputs[1])]


def compiled(model, inputs):
    """Traces with torch.compile, and runs the graphs without optimizing them."""
    quick = torch.compile(model, backend="eager")
    return [quick(x) for x in inputs]


def threaded(model, inputs):
    """Runs two threads at once, each several times."""
    found: list = [None] * len(inputs)
    failed = []

    def run(number):
        try:
            with torch.no_grad():
                for _ in range(5):
                    found[number] = model(inputs[number])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


ANIMALS: dict[str, Any] = {
    "plain": (Plain, once),
    "attention": (Attending, once),
    "encoder": (Encoder, once),
    "tied": (Tied, once),
    "direct weight": (Direct, once),
    "keywords": (Keyworded, once),
    "buffers": (Buffered, once),
    "branches": (Branching, once),
    "LoRA": (Adapted, once),
    "edited": (Plain, edited),
    "compile": (Plain, compiled),
    "two threads": (Plain, threaded),
}


def compare(wanted, found):
    for right, other in zip(wanted, found, strict=True):
        other = other.to(right.device)
        if right.shape != other.shape:
            return "another shape"
        if not torch.equal(right, other):
            apart = (right.float() - other.float()).abs().max().item()
            return f"WRONG by {apart:.1g}"
    return "equal"


def work(task, say):
    """Runs one method on all models. A method may break the process, so each result is reported at once."""
    device = task["device"]
    method = methods.METHODS[task["method"]]
    simulated = "SIMGPU_CARDS" in os.environ  # Kernels do nothing there, so only checks that the models run.
    for name, (make, run) in ANIMALS.items():
        try:
            if method.needs_gpu and device == "cpu":
                raise methods.Unfit("needs a GPU")
            torch.set_default_device("cpu")
            torch.manual_seed(len(name))
            model = make().eval()
            inputs = [torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(seed)).to(device) for seed in (1, 2)]
            with torch.no_grad():
                wanted = run(copy.deepcopy(model).to(device), inputs)
                blocks = [child for child in model.modules() if isinstance(child, nn.Linear)]
                job = methods.Job(model, blocks, device, networks.weight_bytes(model) // 2)
                found = run(method.start(job), inputs)
            said = "ran" if simulated else compare(wanted, found)
        except Exception as error:
            said = methods.in_words(error)
        say({"model": name, "method": task["method"], "said": said})


def table(lines):
    """Markdown with a row for each model and a column for each method."""
    names = list(dict.fromkeys(line["method"] for line in lines))
    said = {(line["model"], line["method"]): line["said"] for line in lines}
    out = ["| H | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for model in ANIMALS:
        cells = [said.get((model, name), "–") for name in names]
        out.append(f"| {model} | " + " | ".join(cell.replace("|", "/")[:60] for cell in cells) + " |")
    return "\n".join(out)
