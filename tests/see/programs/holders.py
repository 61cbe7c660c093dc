"""Programs that hold memory, each in another way: prints what `memlab.holders` promises, and what the release frees."""

import functools
import gc
import json
import sys
from collections import deque
from typing import ClassVar

import memlab
import numpy
import torch
from refused_copies import refuse_copies

MIB = 1 << 20


def block(mebibytes=4):
    return torch.zeros(mebibytes << 18, device="cuda")


def freed(release):
    """Bytes that a release frees, as PyTorch counts them."""
    before = torch.cuda.memory_allocated()
    release()
    return before - torch.cuda.memory_allocated()


class Keeper:
    table: ClassVar[dict] = {}

    def __init__(self):
        self.kept = []


class Slotted:
    __slots__ = ("other", "value")


class Pause:
    def __await__(self):
        yield


class Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = x * 2
        return ctx.result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


kept: list = []
keeper = Keeper()
slotted = Slotted()


# Each makes memory that one object or name holds. `RELEASES` releases it.


def a_list():
    kept.extend(block() for _ in range(20))


def graphs_in_a_list():
    weight = block().requires_grad_()
    kept.extend((weight * 2).exp().sum() for _ in range(3))


def an_attribute():
    keeper.kept.append(block())


def a_class():
    Keeper.table["first"] = block()


def a_slot():
    slotted.value = block()


def a_deque():
    global queue
    queue = deque([block(), block()])


@functools.lru_cache
def made(number):
    return block(number)


def a_cache():
    made(4)


def a_closure():
    global reader
    big = block()

    def read():
        return big.shape

    reader = read


def an_exception():
    global failure

    def fails():
        temporary = block()
        raise ValueError(temporary.shape)

    try:
        fails()
    except ValueError as error:
        failure = error


def a_generator():
    global numbers

    def counts():
        state = block()
        while True:
            yield state.shape

    numbers = counts()
    next(numbers)


def a_coroutine():
    global waiting

    async def waits():
        state = block()
        await Pause()
        return state

    waiting = waits()
    waiting.send(None)


def an_array():
    global table
    table = numpy.empty((3, 2), dtype=object)
    table[1, 1], table[2, 1] = block(), block()


def a_part_of_an_array():
    global row
    whole = numpy.empty((3, 2), dtype=object)
    whole[0, 1], whole[2, 1] = block(), block()
    row = whole.T[1, ::2]


def a_script():
    global scripted
    linear = torch.nn.Linear(1024, 1024, bias=False)
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Sequential(linear))).cuda()


def slots_together():
    middle = block().requires_grad_().exp()
    slotted.value, slotted.other = middle.sum(), middle.mean()


def buckets():
    global model
    group = torch.distributed
    group.init_process_group("nccl", store=group.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False).cuda())


def a_view():
    global row
    row = block().view(1024, -1)[3]


def a_gradient():
    global weight
    weight = block().requires_grad_()
    weight.sum().backward()


def garbage():
    gc.disable()
    cycle = Keeper()
    cycle.kept += [block(), cycle]


def a_ctx():
    gc.disable()
    Remember.apply(block().requires_grad_())


def two_names():
    global first, second
    middle = block().requires_grad_().exp()
    first, second = middle.sum(), middle.mean()


def forget(*names):
    return lambda: [globals().pop(name) for name in names] and None


RELEASES = {
    "a_list": kept.clear,
    "graphs_in_a_list": kept.clear,
    "an_attribute": keeper.kept.clear,
    "a_class": lambda: Keeper.table.clear(),
    "a_slot": lambda: delattr(slotted, "value"),
    "a_deque": forget("queue"),
    "a_cache": lambda: made.cache_clear(),
    "a_closure": forget("reader"),
    "an_exception": forget("failure"),
    "a_generator": forget("numbers"),
    "a_coroutine": lambda: waiting.close() or forget("waiting")(),
    "an_array": forget("table"),
    "a_part_of_an_array": forget("row"),
    "a_script": forget("scripted"),
    "slots_together": lambda: [delattr(slotted, name) for name in ("value", "other")] and None,
    "buckets": forget("model"),
    "a_view": forget("row"),
    "a_gradient": forget("weight"),
    "garbage": lambda: gc.collect() and None,
    "a_ctx": lambda: [gc.collect() for _ in range(4)],
    "two_names": forget("first", "second"),
}


def main(name):
    globals()[name]()
    found = memlab.holders()
    kinds = [holder.kind for holder in found]
    promised = sum(holder.releases for holder in found)
    figures = {"kinds": kinds, "promised": promised, "freed": freed(RELEASES[name])}
    print(json.dumps(found[0]._asdict() | figures))


if "refused" in sys.argv:
    refuse_copies()
main(sys.argv[1])
