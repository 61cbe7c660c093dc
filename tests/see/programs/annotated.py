"""Allocates in ranges of every kind, and prints as JSON the bytes that each range kept, by PyTorch's own counter.

annotated.py CASE, with "outside" for memory in no range.
"""

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections import Counter

import memlab
import recording
import torch
import torch.utils.checkpoint
from torch import nn
from torch.cuda import nvtx

MIB = 1 << 20
kept = Counter()
held = []


def allocated():
    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0


@contextlib.contextmanager
def counted(path):
    """Counts the bytes kept in this block for the range `path`."""
    before = allocated()
    yield
    kept[path] += allocated() - before


def keep(path, mib):
    with counted(path):
        held.append(torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda"))
        torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")  # Temporary.


def plain():
    # Opened before the program first uses CUDA.
    with memlab.annotate("setup"):
        keep("setup", 1)
        with memlab.annotate("weights"):
            keep("setup/weights", 2)
        keep("setup", 0.5)
    keep("outside", 3)

    # The same range again, and one of the same name elsewhere.
    for _ in range(3):
        with memlab.annotate("weights"):
            keep("weights", 1)

    # An exception ends a range.
    with contextlib.suppress(ValueError), memlab.annotate("failed"):
        keep("failed", 4)
        raise ValueError
    keep("outside", 1)

    # Recursion.
    @memlab.annotate("down")
    def down(depth, path):
        keep(path, depth)
        if depth:
            down(depth - 1, f"{path}/down")

    down(2, "down")

    # A thread has its own ranges.
    def work(name):
        with memlab.annotate(name):
            held.append(torch.empty(6 * MIB, dtype=torch.uint8, device="cuda"))

    with memlab.annotate("main"), counted("thread"):
        thread = threading.Thread(target=work, args=("thread",))
        thread.start()
        thread.join()

    # A pop too many does nothing.
    memlab.annotate("never opened").__exit__(None, None, None)
    keep("outside", 0.25)


def suspended():
    """Generators and coroutines are in their range only while they run."""

    @memlab.annotate("generator")
    def generator():
        keep("generator", 1)
        got = yield 1
        assert got == "sent"
        keep("generator", 2)
        try:
            yield 2
        except KeyError:
            keep("generator", 3)
        return "returned"

    made = generator()
    assert next(made) == 1
    keep("outside", 1)
    assert made.send("sent") == 2
    keep("outside", 1)
    try:
        made.throw(KeyError())
    except StopIteration as end:
        assert end.value == "returned"

    @memlab.annotate("closed")
    def closed():
        try:
            yield 1
        finally:
            keep("closed", 4)

    made = closed()
    next(made)
    made.close()
    keep("outside", 1)

    @memlab.annotate("coroutine")
    async def coroutine(turn, other):
        keep("coroutine", 1)
        turn.set()
        await other.wait()
        keep("coroutine", 2)
        return "returned"

    @memlab.annotate("items")
    async def items():
        for index in range(3):
            keep("items", 1)
            await asyncio.sleep(0)
            yield index

    async def main():
        turn, other = asyncio.Event(), asyncio.Event()

        async def between():
            await turn.wait()
            keep("outside", 2)  # While the coroutine waits.
            other.set()

        assert (await asyncio.gather(coroutine(turn, other), between()))[0] == "returned"
        async for _ in items():
            keep("outside", 1)
        async for index in items():
            if index == 1:
                break

    asyncio.run(main())


def nvtx_program():
    """A program that was written for a profiler."""
    returned = [nvtx.range_push("step")]
    keep("step", 1)
    with nvtx.range("batch {}", 7):
        keep("step/batch 7", 2)
        # Both kinds nest.
        with memlab.annotate("ours"):
            keep("step/batch 7/ours", 3)
    returned.append(nvtx.range_pop())
    nvtx.mark("a mark is no range")
    handle = nvtx.range_start("neither is this")
    keep("outside", 1)
    nvtx.range_end(handle)
    print(json.dumps(returned), file=sys.stderr)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        with memlab.annotate("first"):
            x = self.first(x).relu()
        with memlab.annotate("second"):
            return self.second(x)


def gradients(layer):
    return sum(-(-parameter.grad.nbytes // 512) * 512 for parameter in layer.parameters())


def backward():
    """Backward's memory: in the range of forward, or in the one around its call."""
    with counted("outside"):
        nets = [Net().cuda() for _ in range(4)]
        x = torch.randn(32, 512, device="cuda")
    warm = nn.Linear(512, 1024).cuda()
    # cuBLAS allocates its lasting workspaces outside any range: for this thread and autograd's, which runs forward too.
    warm(x).relu().sum().backward()
    torch.utils.checkpoint.checkpoint(warm, x, use_reentrant=False).relu().sum().backward()
    del warm
    kept["outside"] = allocated()

    # Outside any range: backward's memory belongs to forward's ranges.
    nets[0](x).sum().backward()
    kept["first"] += gradients(nets[0].first)
    kept["second"] += gradients(nets[0].second)
    # Inside the range of forward: the same.
    with memlab.annotate("step"):
        nets[1](x).sum().backward()
    kept["step/first"] += gradients(nets[1].first)
    kept["step/second"] += gradients(nets[1].second)
    # Inside a range other than forward's: that range.
    with memlab.annotate("step"):
        with memlab.annotate("forward"):
            loss = nets[2](x).sum()
        with memlab.annotate("backward"):
            loss.backward()
        del loss
    kept["step/backward"] += gradients(nets[2].first) + gradients(nets[2].second)
    # A forward that runs again in backward opens its ranges inside the range of the call.
    with memlab.annotate("forward"):
        loss = torch.utils.checkpoint.checkpoint(nets[3], x, use_reentrant=False).sum()
    with memlab.annotate("again"):
        loss.backward()
    kept["again"] += gradients(nets[3].first) + gradients(nets[3].second)
    held.extend([*nets, x])


def emitted():
    """Every operation is a range with a unique name."""
    with counted("outside"):
        net, x = Net().cuda(), torch.randn(32, 512, device="cuda")
    net(x).sum().backward()
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        for _ in range(20):
            net(x).sum().backward()
    kept.clear()


def many():
    """More names than anyone can read, and ranges that are never closed."""
    for step in range(300):
        with memlab.annotate(f"step {step}"):
            if step in (0, 127):
                keep(f"step {step}", 1)
            if step in (128, 299):
                keep("step #", 1)
    for _ in range(1000):
        memlab.annotate("deep").__enter__()
    held.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
    for _ in range(1000):
        memlab.annotate("deep").__exit__(None, None, None)
    kept["/".join(["deep"] * 128)] += 3 * MIB
    letters = "abcdefghij"
    for number in range(9999):
        with memlab.annotate("name " + "".join(letters[int(digit)] for digit in str(number))):
            pass
    with memlab.annotate("one too many"):
        keep("outside", 2)


def forked():
    """A child inherits its parent's open ranges."""
    with memlab.annotate("before"), memlab.annotate("inside"):
        if os.fork() == 0:
            keep("before/inside", 3)
            with memlab.annotate("child"):
                keep("before/inside/child", 1)
            finish()
        os.wait()
        os._exit(0)


def long():
    """Exceeds the maximum trace size."""
    with memlab.annotate("epoch"):
        keep("epoch", 1)
        for step in range(40_000):
            with memlab.annotate("step"):
                torch.empty(MIB, dtype=torch.uint8, device="cuda")
                if step % 500 == 0:
                    # memlab condenses the trace from half of its limit on, and loses events from three quarters on.
                    recording.until_room(5 * MIB // 2)
                if step % 10_000 == 0:
                    keep("epoch/step", 2)
        keep("epoch", 1)


def late():
    """Loads memlab after the program's start."""
    with memlab.annotate("unseen"):
        keep("outside", 1)
    memlab.start()
    with memlab.annotate("seen"):
        keep("seen", 2)
    with nvtx.range("profiled"):
        keep("profiled", 3)


def child():
    """NVTX in a process without memlab that inherited its parent's environment."""
    with nvtx.range("unseen"):
        keep("outside", 1)


def finish():
    if "outside" not in kept:
        kept["outside"] = allocated() - sum(kept.values())
    print(json.dumps(kept), flush=True)
    os._exit(0)


globals()[sys.argv[1]]()
finish()
