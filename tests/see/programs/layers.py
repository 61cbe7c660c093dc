"""Runs one arrangement of modules and records the layer of each allocation, identified by its size.

    layers.py CASE OUT.json

Every layer's results have a distinct size. OUT: {"forward": {bytes: [name, class]}, "backward": {…}, "recomputed": {…}};
names are qualified names in the outermost module.
"""

import copy
import gc
import json
import sys
import threading
import time

import recording
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

case, out = sys.argv[1:]
ROWS = 128  # A result of ROWS × width floats takes width × 512 bytes, so its size identifies the width.
expected = {"forward": {}, "backward": {}, "recomputed": {}}


def result(width, name, kind="Linear", phase="forward"):
    expected[phase][ROWS * width * 4] = [name, kind]


def weight(inputs, outputs, name, kind="Linear"):
    """The gradient of a weight, allocated in backward."""
    expected["backward"][-(-inputs * outputs * 4 // 512) * 512] = [name, kind]


def batch(width):
    return torch.ones(ROWS, width, device="cuda")


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.list = nn.ModuleList([nn.Linear(33, 35), nn.Linear(35, 37)])
        self.dict = nn.ModuleDict({"up": nn.Linear(37, 41), "down": nn.Sequential(nn.Linear(41, 43), nn.Tanh())})

    def forward(self, x):
        for layer in self.list:
            x = layer(x)
        return self.dict["down"](self.dict["up"](x))


def nesting():
    model = nn.Sequential(Branches(), nn.Sequential(nn.Sequential(nn.Linear(43, 47)))).cuda()
    model(batch(33)).sum().backward()
    # Two layers have width 43: a linear layer and its Tanh.
    for width, name in [(35, "0.list.0"), (37, "0.list.1"), (41, "0.dict.up"), (47, "1.0.0")]:
        result(width, name)
    for inputs, outputs, name in [
        (33, 35, "0.list.0"),
        (35, 37, "0.list.1"),
        (37, 41, "0.dict.up"),
        (41, 43, "0.dict.down.0"),
        (43, 47, "1.0.0"),
    ]:
        weight(inputs, outputs, name)


def called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(19, 19)
            self.last = nn.Linear(19, 23)

        def forward(self, x):
            return self.last(self.inner(self.inner(x)))

    Twice().cuda()(batch(19)).sum().backward()
    result(19, "inner")
    result(23, "last")
    weight(19, 19, "inner")
    # The input is allocated outside any layer and has the size of the inner layer's result.
    expected["forward"].pop(ROWS * 19 * 4)


def shared():
    layer = nn.Linear(29, 29)
    model = nn.Sequential(nn.ModuleDict({"a": layer, "b": layer}))
    model.forward = lambda x: model[0]["b"](model[0]["a"](x)).exp()
    model.cuda()(batch(29)).sum().backward()
    weight(29, 29, "0.a")


def several_roots():
    first, second = nn.Sequential(nn.Linear(31, 37)).cuda(), nn.Sequential(nn.Tanh(), nn.Linear(37, 41)).cuda()
    second(first(batch(31))).sum().backward()
    result(41, "1")
    weight(31, 37, "0")
    weight(37, 41, "1")


def made_and_dropped():
    """Frees modules and creates others at their addresses."""
    for round_ in range(12):
        for width in range(50, 56):
            kind = nn.Linear if (width + round_) % 2 else nn.Bilinear
            if kind is nn.Linear:
                model = nn.Sequential(nn.Identity(), nn.Linear(43, 100 + width)).cuda()
                model(batch(43))
                result(100 + width, "1")
            else:
                model = nn.ModuleList([nn.Bilinear(2, 2, 200 + width)]).cuda()
                model[0](batch(2), batch(2))
                result(200 + width, "", "Bilinear")
            del model
            gc.collect()


def checkpointing():
    class Block(nn.Module):
        def __init__(self, width, wide):
            super().__init__()
            self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

        def forward(self, x):
            return self.down(torch.tanh(self.up(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.ModuleList([Block(59, 61), Block(59, 67)])
            self.head = nn.Linear(59, 71)

        def forward(self, x):
            for block in self.h:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    model = Model().cuda()
    model(batch(59).requires_grad_()).sum().backward()
    for index, width in enumerate([61, 67]):
        # The block's own tanh has results of this width too.
        result(width, f"h.{index}*", "*")
        result(width, f"h.{index}*", "*", "recomputed")
    weight(59, 71, "head")


def custom_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return torch.cat([x, x], 1)

        @staticmethod
        def backward(context, gradient):
            return gradient[:, : gradient.shape[1] // 2] + gradient[:, gradient.shape[1] // 2 :]

    class Doubling(nn.Module):
        def forward(self, x):
            return Double.apply(x)

    model = nn.Sequential(nn.Linear(73, 79), Doubling(), nn.Linear(158, 83)).cuda()
    model(batch(73)).sum().backward()
    result(158, "1", "Doubling")
    result(83, "2")
    weight(73, 79, "0")
    weight(158, 83, "2")
    expected["backward"][ROWS * 79 * 4] = ["1", "Doubling"]


def compiled():
    class Block(nn.Module):
        def __init__(self, width, wide):
            super().__init__()
            self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)

        def forward(self, x):
            return self.down(F.silu(self.up(x)))

    model = nn.Sequential(Block(89, 97), nn.Linear(89, 101)).cuda()
    fast = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        fast(batch(89)).sum().backward()
    result(101, "1")
    weight(89, 97, "0.up")
    weight(97, 89, "0.down")
    weight(89, 101, "1")
    expected["backward"].pop(-(-89 * 97 * 4 // 512) * 512)  # Two weights have this size.
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):
        # Backward's graph does not name the modules of its nodes.
        expected["backward"] = {size: ["*", "*"] for size in expected["backward"]}


def addresses_used_again():
    """Frees modules and creates others of their classes at their addresses, with other names."""
    names = {}
    for round_ in range(60):  # memlab does not distinguish more freed modules than this.
        name = round_ % 3
        model = nn.Sequential(*[nn.Identity() for _ in range(name)], nn.Linear(33, 35 + name)).cuda()
        model(batch(33))
        result(35 + name, str(name))
        names.setdefault((id(model), id(model[-1])), set()).add(name)
        del model
        if round_ > 30 and max(map(len, names.values())) > 1:
            break
    else:
        sys.exit("no address was used again")


def replicas():
    """Copies of a module, each called by its own thread and dropped, as DataParallel does."""

    class Pause(nn.Module):
        def forward(self, x):
            recording.until_named()  # memlab names modules on the main thread while they run.
            return x

    model = nn.Sequential(nn.Linear(33, 35), Pause(), nn.Sequential(nn.Linear(35, 37)), Pause()).cuda()
    for _ in range(3):
        copies = [copy.deepcopy(model) for _ in range(4)]
        threads = [threading.Thread(target=lambda copy: copy(batch(33)), args=(copies.pop(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.001)
    result(35, "0")
    result(37, "2.0")


def one_module_in_threads():
    """Threads that first call the layers of one module at the same time."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.links = nn.ModuleList([nn.Linear(40 + number, 41 + number) for number in range(20)])

        def forward(self, x, length):
            for link in self.links[:length]:
                x = link(x)
            return x

    model = Chain().cuda()
    model(batch(40), 1)
    together = threading.Barrier(4)

    def work():
        x = batch(40)
        together.wait()
        for _ in range(20):
            model(x, 20)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(20):
        result(41 + number, f"links.{number}")


def threads_in_turn():
    """Threads that each create a model and call it once, while the main thread waits for each."""
    models = threads_in_turn.models = []  # memlab may name them only at the end.

    def work(width):
        models.append(nn.Sequential(nn.Linear(33, width)).cuda())
        models[-1](batch(33))

    for width in (35, 37, 39, 41):
        thread = threading.Thread(target=work, args=(width,))
        thread.start()
        thread.join()
        result(width, "0")


def short_lived():
    """Modules created for one call, such as losses. Two classes alternate at one address."""

    class Twice(nn.Module):
        def forward(self, x):
            return torch.cat([x, x], 1)

    class Thrice(nn.Module):
        def forward(self, x):
            return torch.cat([x, x, x], 1)

    model = nn.Linear(33, 35).cuda()
    for _ in range(50):
        Twice()(model(batch(33)))
        Thrice()(model(batch(33)))
    result(35, "")
    result(70, "", "Twice")
    result(105, "", "Thrice")

    def work():
        x = batch(43)
        addresses = []
        for kind in [Twice, Thrice] * 20:
            module = kind()
            module(x)
            addresses.append(id(module))
            del module
        assert len(set(addresses)) < len(addresses), "no address was used again"

    # The main thread waits, so memlab does not learn that a module is freed before the next one takes its address.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    result(86, "*", "Twice")
    result(129, "*", "Thrice")


def functional():
    """Modules called with the parameters of others."""
    model = nn.Sequential(nn.Linear(33, 35), nn.Sequential(nn.Linear(35, 37))).cuda()
    others = {name: parameter * 2 for name, parameter in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    loss(others, batch(33))
    torch.func.grad(loss)(others, batch(33))
    result(35, "0")
    result(37, "1.0")
    weight(33, 35, "0")
    weight(35, 37, "1.0")


globals()[case]()
with open(out, "w") as file:
    json.dump(expected, file)
