"""Modules whose forwards keep, draw, exchange or share what a second forward needs: for test_recompute.py."""

import collections
import functools
import random
import types

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, *more, **keywords):
        return x + self.inner(x, *more, **keywords)


class Model(nn.Module):
    def __init__(self, *inner):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, inner))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1)[:, :8])


class Counting(nn.Module):
    """Depends on how often it was called, in a number and in a list."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0
        self.means = [1.0]

    def forward(self, x):
        self.calls += 1
        self.means.append(self.means[-1] * 0.5 + 1)
        return torch.tanh(self.linear(x)) * self.calls + self.means[-1]


class Averaging(nn.Module):
    """Keeps a moving average in a buffer that it writes and uses."""

    def __init__(self, rows=1):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(rows, 8))

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y * (1 + self.average[0])


class Drawing(nn.Module):
    """Draws from its own generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * torch.rand(x.shape, generator=self.generator)


class Remembering(nn.Module):
    """Keeps a state in an ordinary tensor, in containers within containers and in an object."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.memory = torch.zeros(8)
        self.state = {"a": [collections.deque([1.0], maxlen=3)], "seen": set()}
        self.settings = Settings(scale=1.0)

    def forward(self, x):
        y = torch.tanh(self.linear(x) + self.memory)
        self.memory.mul_(0.5).add_(y.detach().mean(0))
        recent = self.state["a"][0]
        recent.append(recent[-1] * 0.5 + 1)
        self.state["seen"].add(len(self.state["seen"]))
        self.settings.scale *= 1.5
        return y * sum(recent) * self.settings.scale + len(self.state["seen"])


class Settings(types.SimpleNamespace):
    pass


class Options(dict):
    """Its keys are attributes, too."""

    def __init__(self, **options):
        super().__init__(options)
        self.__dict__.update(options)


def counter():
    count = 0

    def counted():
        nonlocal count
        count += 1
        return count

    return counted


class Ticking(nn.Module):
    """Keeps its state where containers and objects have more than their items."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.options = Options(scale=1.0)
        self.count = counter()
        self.tick = functools.partial(Settings.__setattr__, Settings(ticks=0), "ticks")
        self.bytes = bytearray(1)
        self.pair = collections.namedtuple("Pair", "seen last")([], None)
        self.hidden = [nn.BatchNorm1d(8)]

    def forward(self, x):
        self.options.scale *= 1.5
        self.tick(self.tick.args[0].ticks + 1)
        self.bytes[0] += 1
        self.pair.seen.append(1)
        state = self.options.scale + self.count() + self.tick.args[0].ticks + self.bytes[0] + len(self.pair.seen)
        return torch.tanh(self.hidden[0](self.linear(x))) * state + self.hidden[0].running_mean


class Virtual(nn.Module):
    """Calls its normalization once without statistics, as adversarial training does."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def forward(self, x):
        self.part[1].track_running_stats = not self.part[1].track_running_stats
        return torch.tanh(self.part(x))


class Skipping(nn.Module):
    """Draws from the generators of Python and numpy."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = x * float(np.random.rand())
        return x if random.random() < 0.5 else torch.tanh(self.linear(x))


class Recalling(nn.Module):
    """Adds what it computed in its last call, with its graph, and holds a sparse tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.adjacency = torch.eye(8).to_sparse()
        self.register_buffer("edges", torch.eye(8).to_sparse(), persistent=False)
        self.last = None

    def forward(self, x):
        self.last = torch.tanh(self.linear(x) @ self.adjacency + (0 if self.last is None else self.last))
        return self.last


class Twice(nn.Module):
    """Calls its part twice, which recalls the first call in the second."""

    def __init__(self):
        super().__init__()
        self.part = Recalling()

    def forward(self, x):
        self.part.last = None
        return self.part(self.part(x))


class Checkpointing(nn.Module):
    """Checkpoints its own parts."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.run = functools.partial(checkpoint, use_reentrant=use_reentrant)

    def forward(self, x):
        for part in self.parts:
            x = self.run(lambda x, part=part: torch.tanh(part(x)), x)
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def images():
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3))


def shared():
    linear = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return linear, linear, linear


CASES = {
    "linear": lambda: (nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))),
    "batch norm": lambda: (images(), images()),
    "batch norm without momentum": lambda: (nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 8)),
    "instance norm": lambda: (nn.InstanceNorm2d(8, track_running_stats=True), images()),
    "counting": lambda: (Counting(), Counting()),
    "averaging": lambda: (Averaging(), Averaging()),
    "drawing": lambda: (Drawing(), Drawing()),
    "remembering": lambda: (Remembering(), Remembering()),
    "skipping": lambda: (Skipping(), Skipping()),
    "ticking": lambda: (Ticking(), Ticking()),
    "virtual": lambda: (Virtual(), Virtual()),
    "recalling": lambda: (Twice(), Twice()),
    "own checkpointing": lambda: (Checkpointing(False), Checkpointing(True)),
    "shared": shared,
    "recurrent": lambda: (Recurrent(), Recurrent()),
    "transformer": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 8)),
}

SHAPES = {"batch norm": (4, 8, 5, 5), "instance norm": (4, 8, 5, 5), "recurrent": (4, 5, 8), "transformer": (4, 5, 8)}
