"""Pages models of the zoo to two GPUs, and compares each unit's bytes on its device with the arena at each use.

    paged_devices.py [--real] [--budget 64MiB] [what ...]

On real GPUs it also compares results with the unpaged model's, bit for bit. The simulated GPU cannot, because its kernels do
nothing. Prints one JSON line per model. PYTHONPATH=python finds the package.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

import memlab
import paged
import torch
from memlab._paging import collect, units
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

sys.path.append(str(Path(__file__).resolve().parents[1]))
from paging.zoo import ZOO, build, call

DEVICES = ["cuda:0", "cuda:1"]


def tensors(result):
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(tensors(ours), tensors(theirs), strict=True))


def counts(plan):
    return {"stage": plan.stage, "pinned": plan.pinned, "notes": plan.notes, "streamed": plan.streamed_bytes} | plan.counters


def run(name, budget, real):
    """Compares forwards of one model over two devices with unpaged ones."""
    torch.manual_seed(1)
    paged.compared = 0
    twin, model = build(name), build(name)
    model.load_state_dict(twin.state_dict())
    inputs = tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), ZOO[name].inputs())
    twin.to("cuda" if real else "cpu")
    memlab.page(model, DEVICES, budget=budget)
    good, where = True, set()
    for _ in range(5):
        ours = call(model, inputs)
        where |= {str(tensor.device) for tensor in tensors(ours) if tensor.device.type == "cuda"}
        good &= not real or equal(ours, call(twin, inputs))
    plan = memlab.plan_of(model)
    found = {"model": name, "equal": good, "compared": paged.compared, "results": sorted(where)} | counts(plan)
    found["devices"] = [part.device for part in plan.devices]
    found["current"] = torch.cuda.current_device()
    memlab.unpage(model)
    same = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    found["state"] = all(torch.equal(one.cpu(), other.cpu()) for one, other in same)
    print(json.dumps(found), flush=True)


def layers(real, budget="min", **options):
    """A stack of layers on one GPU, and its copy over two."""
    torch.manual_seed(2)
    width = 2048 if real else 64
    twin = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(8))).eval()
    twin.requires_grad_(False)
    model = memlab.page(copy.deepcopy(twin), DEVICES, max_layer_size=width * width * 2, budget=budget, **options)
    inputs = [torch.randn(16, width, device="cuda") for _ in range(6)]
    twin.cuda()
    with torch.no_grad():
        return twin, model, inputs, [twin(x) for x in inputs]


def budgets(real):
    """A device with room for two of eight layers, and one with room for four."""
    layer = (2048 * 2049 if real else 64 * 65) * 4
    given = {"cuda:0": layer * 2 + 8192, "cuda:1": layer * 4 + 8192}
    _, model, inputs, wanted = layers(real, given)
    with torch.no_grad():
        good = [torch.equal(model(x), y) for x, y in zip(inputs, wanted, strict=True)]
    found = {part.device: part.device_bytes for part in model.memlab.devices}
    return {"equal": all(good), "taken": found, "given": given} | counts(model.memlab)


def threads(real):
    """Several threads, each on a separate stream of the first device."""
    _, model, inputs, wanted = layers(real)
    with torch.no_grad():
        for x in inputs[:4]:
            model(x)
    return {"equal": paged.agree_in_threads(model, inputs, wanted)} | counts(model.memlab)


def frozen(real):
    """Gradients through frozen weights, back over the border."""
    twin, model, inputs, _ = layers(real)
    good = []
    for x in inputs:
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        model(ours).square().sum().backward()
        twin(theirs).square().sum().backward()
        good.append(torch.equal(ours.grad, theirs.grad))
    return {"equal": all(good)} | counts(model.memlab)


def trained(real):
    """Trains a layer on each device."""
    twin, model, inputs, _ = layers(real)
    with torch.no_grad():
        for x in inputs[:4]:
            model(x)
    optimizers = []
    for one in (twin, model):
        for index in (0, 7):
            one[index].requires_grad_(True)
        optimizers.append(torch.optim.SGD([p for p in one.parameters() if p.requires_grad], 0.1))
    good = []
    for x in inputs:
        losses = []
        for one, optimizer in zip((twin, model), optimizers, strict=True):
            losses.append(one(x).square().mean())
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        good.append(torch.equal(*losses))
    where = sorted({str(p.device) for p in model.parameters() if p.requires_grad})
    return {"equal": all(good), "trained": where} | counts(model.memlab)


class Cache:
    """A container that memlab does not know."""

    def __init__(self):
        self.layers = {}


class Caching(nn.Module):
    """Layers that keep their results for the next forward, like key caches."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x, cache):
        layers = cache if isinstance(cache, dict) else cache.layers
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index in layers:
                x = x + layers[index].mean(0)
            layers[index] = x
        return x


def caching(real, kind=dict):
    """A cache that the first forward fills, on the first device."""
    torch.manual_seed(3)
    width = 512 if real else 64
    twin = Caching(width).eval()
    model = memlab.page(copy.deepcopy(twin), DEVICES, max_layer_size=1)
    twin.cuda()
    ours, theirs, good = kind(), kind(), []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(4, width, device="cuda")
            good.append(torch.equal(model(x, ours), twin(x, theirs)))
    cached = ours if isinstance(ours, dict) else ours.layers
    where = [str(tensor.device) for tensor in cached.values()]
    return {"equal": all(good), "cached": where} | counts(model.memlab)


def caching_object(real):
    """The same cache in an object."""
    return caching(real, Cache)


def graph(real):
    """A capture in a CUDA graph, which covers one device: refused."""
    _, model, inputs, wanted = layers(real)
    with torch.no_grad():
        for x in inputs[:4]:
            model(x)
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(inputs[0])
            error = ""
        except RuntimeError as refused:
            error = str(refused)
        return {"equal": torch.equal(model(inputs[4]), wanted[4]), "error": error} | counts(model.memlab)


def refused(real):
    """Lists of invalid devices, or of devices that this machine lacks."""
    errors, model = {}, nn.Linear(8, 8)
    for devices in (["cuda:0", "cuda:0"], ["cuda", "cuda:0"], ["cuda:0", "cpu"], ["cuda:0", "cuda:99"], ["cuda:0", "tpu"]):
        try:
            memlab.page(model, devices)
        except (RuntimeError, ValueError) as error:
            errors[", ".join(devices)] = str(error)
    return {"equal": True, "errors": errors, "untouched": "forward" not in vars(model)}


HOW = {"budgets": budgets, "threads": threads, "frozen": frozen, "trained": trained, "graph": graph}
HOW |= {"caching": caching, "caching object": caching_object, "refused": refused}

if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("what", nargs="*", default=[*ZOO, *HOW])
    arguments.add_argument("--budget")
    arguments.add_argument("--real", action="store_true")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    # Small models, divided as finely as large ones.
    units.SMALL_UNIT = 64 << 10
    units.SMALL_SHARED = 4 << 10
    collect.SMALL_BUFFER = 64 << 10
    if arguments.real:
        torch.backends.cudnn.deterministic = True
    paged.check_acquired_units()
    for name in arguments.what:
        if name in HOW:
            paged.compared = 0
            found = HOW[name](arguments.real)
            print(json.dumps({"model": name, "compared": paged.compared} | found), flush=True)
        else:
            run(name, arguments.budget, arguments.real)
