"""Pages the models of the zoo on a GPU and compares each unit's bytes on the device with the arena at each use.

On a real GPU it also compares results with the unpaged model's. The simulated GPU cannot, because its kernels do nothing.
Prints one JSON line per model. PYTHONPATH=python finds the package.
"""

import argparse
import copy
import functools
import json
import os
import sys
import threading
from pathlib import Path

import memlab
import torch
from memlab._paging import collect, device_pool, planning, single_device_pager, stages, units
from memlab._paging.device_pool import DevicePool
from memlab._paging.stages import Stages
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map_only

sys.path.append(str(Path(__file__).resolve().parents[1]))
from paging.zoo import ZOO, build, call

compared = 0


def check_acquired_units():
    """Compares each unit's bytes, on the stream that will use them."""
    make = DevicePool.__init__

    def check(pool, index):
        global compared
        for paged in pool.placed[index].tensors:
            address = paged.on_device.data_ptr()
            assert any(block.data_ptr() <= address < block.data_ptr() + block.nbytes for block in pool.blocks)
            ours, theirs = paged.on_device.cpu().contiguous(), paged.tensor.detach().contiguous()
            assert torch.equal(ours.view(-1).view(torch.uint8), theirs.view(-1).view(torch.uint8)), paged.name
            compared += paged.tensor.nbytes

    def make_observed(self, *args):
        make(self, *args)
        self.placed_units.observe(functools.partial(check, self))

    DevicePool.__init__ = make_observed


def run(name, budget, real):
    """Compares paged forwards of one model with unpaged ones."""
    global compared
    compared = 0
    torch.manual_seed(1)
    twin, model = build(name), build(name)
    model.load_state_dict(twin.state_dict())
    inputs = tree_map_only(torch.Tensor, lambda t: t.cuda(), ZOO[name].inputs())
    if real:
        twin = copy.deepcopy(twin).cuda()
    memlab.page(model, "cuda", budget=budget)
    equal, largest = True, 0.0
    for _ in range(5):
        ours = tree_flatten(call(model, inputs))[0]
        if real:
            theirs = tree_flatten(call(twin, inputs))[0]
            for a, b in zip(ours, theirs, strict=True):
                if isinstance(a, torch.Tensor):
                    equal &= torch.equal(a, b)
                    largest = max(largest, float((a.double() - b.double()).abs().max()))
    plan = memlab.plan_of(model)
    said = {"model": name, "stage": plan.stage, "equal": equal, "compared": compared, "pinned": plan.pinned}
    said["largest_difference"] = largest
    said |= {"streamed": plan.streamed_bytes, "notes": plan.notes} | plan.counters
    memlab.unpage(model)
    same = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    said["state"] = all(torch.equal(a, b.cpu()) for a, b in same)
    print(json.dumps(said), flush=True)


def layers(real):
    """A stack of layers on the GPU, unpaged and paged."""
    torch.manual_seed(2)
    width = 2048 if real else 64
    twin = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(8))).cuda().eval()
    model = memlab.page(copy.deepcopy(twin), "cuda", max_layer_size=width * width * 2, budget="min")
    inputs = [torch.randn(16, width, device="cuda") for _ in range(6)]
    with torch.no_grad():
        return twin, model, inputs, [twin(x) for x in inputs]


def graph(real):
    """A forward captured in a CUDA graph, replayed between eager ones."""
    _, model, inputs, wanted = layers(real)
    x = inputs[0].clone()
    with torch.no_grad():
        for _ in range(4):
            model(x)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            result = model(x)
        good = []
        for turn in range(30):
            which = turn % len(inputs)
            x.copy_(inputs[which])
            captured.replay()
            good.append(torch.equal(result, wanted[which]))
            if turn % 3 == 0:
                good.append(torch.equal(model(inputs[which]), wanted[which]))
    return {"equal": all(good), "count": len(good)}


def agree_in_threads(model, inputs, wanted):
    """Returns true if four threads, each on a separate stream, get the expected result in 40 forwards each."""
    wrong = []
    torch.cuda.synchronize()

    def work(which):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(40):
                if not torch.equal(model(inputs[which]), wanted[which]):
                    wrong.append(which)

    running = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return not wrong


def threads(real):
    """Several threads, each on its own stream."""
    _, model, inputs, wanted = layers(real)
    with torch.no_grad():
        for x in inputs[:3]:
            model(x)
    return {"equal": agree_in_threads(model, inputs, wanted), "count": 160}


def compiled(real):
    """torch.compile of a paged model."""
    _, model, inputs, wanted = layers(real)
    fast = torch.compile(model, backend="inductor" if real else "eager")
    with torch.no_grad():
        good = [torch.allclose(fast(x), y, atol=1e-4) for x, y in zip(inputs, wanted, strict=True)]
    return {"equal": all(good), "count": len(good)}


def frozen(real):
    """Gradients through frozen weights."""
    twin, model, inputs, _ = layers(real)
    twin.requires_grad_(False)
    model.requires_grad_(False)
    good = []
    for x in inputs:
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        model(ours).square().sum().backward()
        twin(theirs).square().sum().backward()
        good.append(torch.equal(ours.grad, theirs.grad))
    return {"equal": all(good), "count": len(good)}


class Tied(nn.Module):
    """A trained LSTM and a trained head that is tied to the embedding, between frozen layers."""

    def __init__(self, width):
        super().__init__()
        self.emb = nn.Embedding(256, width)
        self.before = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).requires_grad_(False)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.after = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).requires_grad_(False)
        self.head = nn.Linear(width, 256)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(self.after(self.lstm(self.before(self.emb(ids)))[0]))


def trained(real):
    """Trains some weights beside frozen ones, after forwards that paged all of them."""
    torch.manual_seed(4)
    twin = Tied(512 if real else 64)
    model = memlab.page(copy.deepcopy(twin), "cuda", budget="min")
    twin.cuda()
    ids = torch.randint(0, 256, (8, 16), device="cuda")
    with torch.inference_mode():
        for _ in range(4):
            model(ids)
    paged = {p.device.type for p in model.parameters()}
    optimizers = [torch.optim.AdamW([p for p in one.parameters() if p.requires_grad]) for one in (model, twin)]
    good = []
    for _ in range(6):
        losses = []
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            losses.append(one(ids).square().mean())
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        good.append(torch.equal(*losses))
    copied = copy.deepcopy(model)
    devices = [{p.device.type for p in one.parameters() if p.requires_grad} for one in (model, copied)]
    base = {p.device.type for p in model.parameters() if not p.requires_grad}
    tied = copied.head.weight is copied.emb.weight
    memlab.unpage(model)
    same = all(torch.equal(a, b.cpu()) for a, b in zip(model.parameters(), twin.parameters(), strict=True)) or not real
    back = {p.device.type for p in model.parameters()}
    where = {"paged": paged, "trained": devices[0], "copied": devices[1], "base": base, "back": back}
    return {"equal": all(good) and same, "tied": tied, "where": {what: sorted(which) for what, which in where.items()}}


def chunked(real):
    """The leading half on the GPU, the rest on the CPU."""
    _, model, inputs, wanted = layers(real)
    memlab.unpage(model)
    memlab.chunk(model, "cuda", sum(p.numel() for p in model.parameters()) // 2)
    with torch.no_grad():
        results = [model(x) for x in inputs]
    good = [torch.allclose(x, y, atol=1e-3) and x.device == y.device for x, y in zip(results, wanted, strict=True)]
    halves = {p.device.type for p in model.parameters()}
    return {"equal": all(good) or not real, "count": len(good), "halves": sorted(halves)}


def share(real):
    """The process's share of the GPU is smaller than the weights, and the budget is larger."""
    cleared = []  # PyTorch's memory on the GPU while nothing is placed.
    clear = DevicePool.clear

    def clear_and_note(self, *how):
        clear(self, *how)
        cleared.append(torch.cuda.memory_reserved())

    DevicePool.clear = clear_and_note
    said, before = allowed_more(448 << 20, "2GiB", real)
    return said | {"cleared": [nbytes - before for nbytes in cleared]}


def edge(real):
    """The process has room for two layers and the activations only. A copy takes as long as a layer computes."""
    know_times(17_000_000)
    said, _ = allowed_more(60 << 20, None, real)
    return said


def allowed_more(nbytes, budget, real):
    """A model of 32 layers of 16 MiB each, in a process that PyTorch allows `nbytes` more than its current memory."""
    width = 2048
    twin = nn.Sequential(*(nn.Linear(width, width) for _ in range(32))).eval()
    x = torch.randn(16, width, device="cuda")
    with torch.no_grad():
        wanted = copy.deepcopy(twin).cuda()(x) if real else None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    allowed = before + nbytes
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    model = memlab.page(twin, "cuda", budget=budget)
    with torch.no_grad():
        results = [model(x) for _ in range(5)]
    reserved = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(1.0)
    good = [torch.equal(result, wanted) for result in results] if real else [True]
    said = {"equal": all(good), "count": len(good), "reserved": reserved, "allowed": allowed}
    plan = memlab.plan_of(model)
    said |= {"resident": model.memlab.resident_bytes, "ring": plan.ring_bytes, "largest": max(u.nbytes for u in plan.units)}
    return said, before


def forked(real):
    """A child that is forked from the process that paged the model."""
    _, model, inputs, wanted = layers(real)
    with torch.no_grad():
        results = [model(x) for x in inputs[:3]]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            memlab.unpage(model)
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as said:
        error = said.read()
    os.waitpid(child, 0)
    with torch.no_grad():
        results += [model(x) for x in inputs[3:]]
    good = [torch.equal(ours, theirs) for ours, theirs in zip(results, wanted, strict=True)]
    return {"equal": all(good) or not real, "count": len(good), "pinned": memlab.plan_of(model).pinned, "error": error}


def slow_host(real, first=140, second=140, samples_of_third=16):
    """Copies that compute hides: 12 points of 10 ms. The checking forwards take the given milliseconds on the host."""
    know_times(10_000_000)
    planning.HOST_COPY_NS = stages.HOST_COPY_NS = 2_000_000
    single_device_pager.time = Clock([0, first, first, first + second])
    torch.manual_seed(3)
    twin = nn.Sequential(*(nn.Linear(512, 512) for _ in range(12))).cuda().eval()
    model = memlab.page(copy.deepcopy(twin), "cuda", max_layer_size=512 * 513)
    good, copied = [], []
    with torch.no_grad():
        for forward in range(6):
            x = torch.randn(samples_of_third if forward == 2 else 16, 512, device="cuda")
            good.append(torch.equal(model(x), twin(x)))
            copied.append(sum(not unit.resident for unit in model.memlab.units))
    return {"equal": all(good), "count": len(good), "copied": copied}


def know_times(point_ns):
    """Gives the planner this time for each point, and a bus of 1 GB/s, whatever the machine measures."""
    Stages.note_times = lambda stages: stages.times.extend([point_ns] * len(stages.schedule.points)) or True
    Stages._times_now = lambda stages: stages.times
    DevicePool.bandwidth = lambda pool, wanted: 1e9


class Clock:
    """Returns these milliseconds, one after the other."""

    def __init__(self, milliseconds):
        self.milliseconds = iter(milliseconds)

    def perf_counter_ns(self):
        return next(self.milliseconds) * 1_000_000


def slow_once(real):
    """`slow_host` with a second checking forward that was slow by chance, and a normal first one."""
    return slow_host(real, 100, 400)


def slow_alone(real):
    """`slow_host` with another input in the first checking forward, and a slow second one."""
    return slow_host(real, 140, 140, samples_of_third=8)


HOW = {"graph": graph, "threads": threads, "compiled": compiled, "frozen": frozen, "trained": trained}
HOW |= {"chunked": chunked, "share": share, "edge": edge, "forked": forked, "slow host": slow_host, "slow once": slow_once}
HOW |= {"slow alone": slow_alone}

if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("what", nargs="*", default=[*ZOO, *HOW])
    arguments.add_argument("--budget", default="min")
    arguments.add_argument("--real", action="store_true")
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    # Small models, divided as finely as large ones.
    units.SMALL_UNIT = 64 << 10
    units.SMALL_SHARED = 4 << 10
    collect.SMALL_BUFFER = 64 << 10
    planning.LEAST_PIECE = device_pool.LEAST_PIECE = 4 << 10
    if arguments.real:
        torch.backends.cudnn.deterministic = True
    for name in arguments.what:
        if name in HOW:
            print(json.dumps({"model": name} | HOW[name](arguments.real)), flush=True)
    check_acquired_units()
    for name in arguments.what:
        if name in ZOO:
            run(name, arguments.budget, arguments.real)
