"""Programs that yield their GPU memory: `courtesies.py NAME [ARGUMENT]` runs one of the functions below and prints JSON.

Kernels do nothing on the simulated GPU, so programs fill memory with random bytes and compare bytes.
"""

import gc
import hashlib
import json
import os
import subprocess
import sys
import threading
from typing import ClassVar, List  # noqa: UP035

import gate
import memlab
import torch
from torch import nn

MIB = 1 << 20
SIMULATED = "SIMGPU_CARDS" in os.environ
random = torch.Generator().manual_seed(1)


def digest(*tensors):
    """Checksum of the bytes of tensors."""
    state = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def filled(tensor):
    """Fills a tensor with random values, which autograd takes for the result of its operation."""
    tensor.data.copy_(torch.rand(tensor.shape, generator=random))
    return tensor


def allocated():
    return torch.cuda.memory_allocated()


def raised(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def training(when):
    """Six steps of a small training; with `yielding`, memory is yielded between steps and before a backward."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.BatchNorm1d(256), nn.Linear(256, 64), nn.Sigmoid()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    courtesy = memlab.Courtesy()

    def state():
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        moments = [value for entry in optimizer.state.values() for value in entry.values()]
        return [digest(*model.state_dict().values()), digest(*moments), digest(*gradients)]

    def be_courteous():
        if when == "yielding":
            before = state()
            with courtesy:
                pass
            assert state() == before

    seen = []
    for step in range(6):
        inputs, targets = torch.rand(32, 64, generator=random).cuda(), torch.rand(32, 64, generator=random).cuda()
        optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean()
        difference = loss.grad_fn.next_functions[0][0]
        if SIMULATED:
            filled(difference._saved_self)
        if step == 4:
            be_courteous()
        saved = digest(difference._saved_self)
        loss.backward()
        optimizer.step()
        if SIMULATED and step == 2:
            for tensor in model.state_dict().values():
                filled(tensor)
            for entry in optimizer.state.values():
                filled(entry["exp_avg"]), filled(entry["exp_avg_sq"])
        if step in (0, 3):
            be_courteous()
        seen.append([saved, *state(), digest(loss)])
    # Kernels of the simulated GPU do nothing, so bytes in fresh memory vary between runs.
    return [entry[:3] for entry in seen] if SIMULATED else seen


def readme():
    """The example of pytorch_memlab's README."""
    from memlab import Courtesy

    tensor = filled(torch.empty(1000, 1000, device="cuda"))
    before, waited, num_iteration = digest(tensor), [], 3

    def wait_for_restart_signal():
        waited.append(allocated())

    iamcourtesy = Courtesy()
    for i in range(num_iteration):
        something_happens = i == 1
        if something_happens:
            iamcourtesy.yield_memory()
            wait_for_restart_signal()
            iamcourtesy.restore()
    return {"waited": waited, "same": digest(tensor) == before}


def aliases():
    """Tensors of all kinds and their aliases. Returns the differences after a courtesy."""
    base = filled(torch.empty(512, 512, device="cuda"))
    view, row = base.view(-1), base[10:20]
    transposed, expanded = base.t(), base[:1].expand(7, 512)
    held = filled(torch.empty(100, device="cuda")).untyped_storage()
    tied = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).cuda()
    tied[1].weight = tied[0].weight
    without_gradient = nn.Parameter(filled(torch.empty(999, device="cuda")))
    tied(torch.ones(3, 32, device="cuda")).sum().backward()
    kept = base[:, :32] @ tied[0].weight
    kept.retain_grad()
    kept.sum().backward()
    for parameter in [*tied.parameters(), kept]:
        filled(parameter.grad)
    coo = torch.sparse_coo_tensor([[0, 1, 0], [2, 0, 2]], filled(torch.empty(3, 9)), (2, 3, 9)).cuda()
    csr = torch.eye(8).to_sparse_csr().cuda()
    # No part of these has ever been a Python object.
    untouched = [
        torch.eye(300).to_sparse().cuda(),
        torch.eye(300).to_sparse_csr().cuda(),
        torch.eye(300).to_sparse_csc().cuda(),
    ]
    with torch.inference_mode():
        inference = torch.rand(50, device="cuda")
    scripted = torch.jit.script(nn.BatchNorm1d(300).cuda())
    filled(scripted.running_mean)
    meta, empty = torch.empty(1000, device="meta"), torch.empty(0, device="cuda")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(1000, device="cuda")
    buffers = nn.BatchNorm1d(77).cuda()
    complex_one = torch.view_as_complex(filled(torch.empty(100, 2, device="cuda"))).conj()

    def everything():
        yield from (base, view, row, transposed, expanded, without_gradient, kept, kept.grad, inference, complex_one)
        yield from (parameter.grad for parameter in tied.parameters())
        yield from (coo._indices(), coo._values(), csr.crow_indices(), csr.col_indices(), csr.values())
        yield from (*tied.state_dict().values(), *buffers.state_dict().values(), *scripted.state_dict().values())
        yield torch.empty(0, device="cuda").set_(held).view(torch.uint8)

    def layout():
        """For each tensor, the first tensor that shares its storage, and its offset in it."""
        storages = [tensor.untyped_storage() for tensor in everything()]
        first = {}
        for number, storage in enumerate(storages):
            first.setdefault(storage.data_ptr(), number)
        return [
            [first[storage.data_ptr()], tensor.data_ptr() - storage.data_ptr(), storage.nbytes()]
            for tensor, storage in zip(everything(), storages, strict=True)
        ]

    before = [digest(tensor.resolve_conj()) for tensor in everything()], layout(), tied[1].weight is tied[0].weight
    torch._C._cuda_clearCublasWorkspaces()  # Old versions of PyTorch keep these until memory is yielded.
    start, courtesy, addresses = allocated(), memlab.Courtesy(), [tensor.data_ptr() for tensor in everything()]
    yielded = courtesy.yield_memory()
    during = allocated()
    restored = courtesy.restore()
    after = [digest(tensor.resolve_conj()) for tensor in everything()], layout(), tied[1].weight is tied[0].weight
    base[10, 0].copy_(torch.tensor(42.0))
    return {
        "same": before == after,
        "at the same addresses": addresses == [tensor.data_ptr() for tensor in everything()],
        "allocated": [start, during, allocated()],
        "moved": [yielded.moved, restored],
        "view": [row[0, 0].item(), view[512 * 10].item()],
        "others": [meta.is_meta, fake.shape[0], empty.numel()],
        "sparse": [torch.equal(tensor.cpu().to_dense(), torch.eye(300)) for tensor in untouched],
    }


def autograd():
    """Tensors that only autograd holds: saved outputs, a custom function's saved tensors, hooks' packed tensors."""
    hooked = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            context.save_for_backward(filled(value * 2))
            return value * 2

        @staticmethod
        def backward(context, gradient):
            return gradient

    leaf = torch.ones(4 * MIB, device="cuda", requires_grad=True)
    outputs = [torch.sigmoid(leaf).exp(), Doubled.apply(leaf)]
    filled(outputs[0].grad_fn.next_functions[0][0]._saved_result)
    filled(outputs[0].grad_fn._saved_result)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.cpu(), lambda saved: hooked.append(1) or saved.cuda()):
        outputs.append(leaf.cos())

    def saved():
        first, second = outputs[0].grad_fn, outputs[0].grad_fn.next_functions[0][0]
        return [first._saved_result, second._saved_result, *outputs[1].grad_fn.saved_tensors]

    before, start = digest(*saved()), allocated()
    courtesy = memlab.Courtesy()
    moved = courtesy.yield_memory().moved
    during, calls = allocated(), len(hooked)
    courtesy.restore()
    same = digest(*saved()) == before
    for output in outputs:
        output.sum().backward()
    courtesy.yield_memory()  # Memory that a backward has freed causes no error.
    courtesy.restore()
    return {"same": same, "allocated": [start, during], "moved": moved, "hooked": calls, "leaf": leaf.grad.numel()}


def unshown():
    """A PyTorch that hides autograd's saved tensors, like 2.8: only the graph holds the result of `exp`."""
    from memlab._paging import torch_private
    from memlab.compat._courtesy import attribution

    torch_private.shows_saved = attribution.shows_saved = lambda: False
    leaf = torch.ones(MIB, device="cuda", requires_grad=True)
    output = leaf.exp().sum()
    yielded = memlab.Courtesy().yield_memory()
    return {"stayed": [(row.nbytes, row.why) for row in yielded.stayed], "held": output.requires_grad}


class Recording(type):
    """Metaclass of classes that record every access."""

    asked: ClassVar[list] = []

    def _ask(cls, *_):
        Recording.asked.append("asked")
        return False

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = _ask
    __name__ = __module__ = __mro__ = property(_ask)

    def __getattribute__(cls, name):
        Recording.asked.append(name)
        return type.__getattribute__(cls, name)


def watchful():
    """Objects that record when their code runs: an instance of a class with such a metaclass, a proxy, and a tensor."""

    class Asked(metaclass=Recording):
        pass

    class Proxy:
        @property
        def __class__(self):
            Recording.asked.append("class")
            return Proxy

        def __getattr__(self, name):
            Recording.asked.append(name)
            raise AttributeError(name)

    class Shaped(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            Recording.asked.append(function.__name__)
            return super().__torch_function__(function, types, arguments, named or {})

        layout = grad_fn = is_leaf = retains_grad = grad = _base = property(lambda self: Recording.asked.append("property"))

    held = [Asked(), Proxy(), torch.ones(MIB, device="cuda").as_subclass(Shaped)]
    reporter, courtesy = memlab.MemReporter(), memlab.Courtesy()
    Recording.asked.clear()
    moved = courtesy.yield_memory().moved
    courtesy.restore()
    courteous = sorted(set(Recording.asked))
    reporter.collect(0)
    return {"moved": moved, "held": len(held), "courteous": courteous, "reported": sorted(set(Recording.asked))}


def unreachable():
    """Memory that no Python object leads to: only a TorchScript list holds the tensor."""

    class Cache(nn.Module):
        cached: List[torch.Tensor]  # noqa: UP006 - TorchScript reads it

        def __init__(self):
            super().__init__()
            self.cached = []

        def forward(self, value: torch.Tensor) -> int:
            self.cached.append(value + 1)
            return len(self.cached)

    cache = torch.jit.script(Cache())
    held = torch.ones(MIB, device="cuda")
    cache(held)
    start = allocated()
    courtesy = memlab.Courtesy()
    yielded = courtesy.yield_memory()
    during = allocated()
    courtesy.restore()
    return {"allocated": [start, during], "moved": yielded.moved, "stayed": [row._asdict() for row in yielded.stayed]}


def graph():
    """CUDA graphs: captured, during capture, and deleted."""
    courtesy, weight = memlab.Courtesy(), torch.ones(MIB, device="cuda")
    pointer, found = weight.data_ptr(), {}
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = weight * 2
        found["capturing"] = raised(courtesy.yield_memory)
    found["captured"] = raised(courtesy.yield_memory)
    found["unmoved"] = weight.data_ptr() == pointer and allocated() > 0
    captured.replay()
    del captured
    gc.collect()
    # The graph's memory exists while one of its tensors does. Only the graph's owner knows whether the graph exists.
    found["its memory"] = raised(courtesy.yield_memory)
    del result
    found["moved"] = courtesy.yield_memory().moved
    courtesy.restore()
    return found


def replayed():
    """A captured graph of an offloaded program: it uses the same addresses afterwards."""
    weight, captured = filled(torch.empty(MIB, device="cuda")), torch.cuda.CUDAGraph()
    copy = torch.empty_like(weight)
    courtesy = memlab.Courtesy()
    with torch.cuda.graph(captured):
        copy.copy_(weight)
        capturing = raised(courtesy.yield_memory)
    before, pointers = digest(weight), (weight.data_ptr(), copy.data_ptr())
    moved = courtesy.yield_memory().moved
    courtesy.restore()
    captured.replay()
    same = digest(weight) == before and (weight.data_ptr(), copy.data_ptr()) == pointers
    return {"capturing": capturing, "moved": moved, "same": same}


def unmovable():
    """Unmovable storages: shared with another process, in a separate pool, or used by another library."""
    from torch.multiprocessing.reductions import reduce_tensor

    class Foreign:
        def __init__(self, tensor):
            self.tensor = tensor
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    shared = filled(torch.empty(MIB, device="cuda"))
    reduce_tensor(shared)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = filled(torch.empty(2 * MIB, device="cuda"))
    aliased = filled(torch.empty(5 * MIB, device="cuda"))
    foreign = torch.as_tensor(Foreign(aliased[MIB:]), device="cuda")
    movable = filled(torch.empty(3 * MIB, device="cuda"))
    fixed = (shared, pooled, aliased, foreign)
    before, pointers = digest(*fixed, movable), [tensor.data_ptr() for tensor in fixed]
    courtesy = memlab.Courtesy()
    yielded = courtesy.yield_memory()
    during, text = allocated(), str(yielded)
    courtesy.restore()
    same = digest(*fixed, movable) == before and pointers == [tensor.data_ptr() for tensor in fixed]
    return {
        "moved": yielded.moved,
        "allocated": during,
        "same": same,
        "stayed": [(row.why, row.nbytes) for row in yielded.stayed],
        "text": text,
    }


def full():
    """Restores on a GPU that has become too full."""
    tensors = [filled(torch.empty(16 * MIB, device="cuda")) for _ in range(4)]
    before, courtesy = digest(*tensors), memlab.Courtesy()
    courtesy.yield_memory()
    free = torch.cuda.mem_get_info()[0]
    balloon = torch.empty(free - 160 * MIB, dtype=torch.uint8, device="cuda")
    start = allocated()
    errors = [raised(courtesy.restore) for _ in range(2)]
    found = {"errors": errors, "unchanged": allocated() == start, "empty": [t.untyped_storage().nbytes() for t in tensors]}
    found["used"] = raised(lambda: tensors[0].cpu()) is not None
    del balloon
    return found | {"restored": courtesy.restore(), "same": digest(*tensors) == before}


def full_of_another():
    """Restores an offloaded program while another process uses the GPU."""
    tensors = [filled(torch.empty(16 * MIB, device="cuda")) for _ in range(4)]
    before, courtesy = digest(*tensors), memlab.Courtesy()
    courtesy.yield_memory()
    code = "import torch; held = torch.empty(400 << 20, dtype=torch.uint8, device='cuda'); print(flush=True); input()"
    environment = os.environ | {"MEMLAB": "0"}
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert other.stdout.readline() == b"\n"
    errors = [raised(courtesy.restore) for _ in range(2)]
    other.communicate(b"\n")
    return {"errors": errors, "restored": courtesy.restore(), "same": digest(*tensors) == before}


def threads():
    """Uses the GPU from a thread while the program is offloaded."""
    tensor = filled(torch.empty(MIB, device="cuda"))
    before, courtesy, result = digest(tensor), memlab.Courtesy(), []
    courtesy.yield_memory()
    thread = threading.Thread(target=lambda: result.append(digest(tensor)))
    thread.start()
    waited = gate.waits(thread) and not result
    courtesy.restore()
    thread.join()
    return {"waited": waited, "same": result == [before]}


def restored_from_outside():
    """Waits until another process restores the memory."""
    tensor = filled(torch.empty(MIB, device="cuda"))
    before, courtesy = digest(tensor), memlab.Courtesy()
    courtesy.yield_memory()
    print("yielded", flush=True)
    same = digest(tensor) == before  # Blocks until the restore.
    return {"same": same, "restored": courtesy.restore()}


def host():
    """A machine whose host memory is full."""
    from memlab.compat._courtesy import host_copies

    tensor = filled(torch.empty(MIB, device="cuda"))
    before, start, courtesy = digest(tensor), allocated(), memlab.Courtesy()
    host_copies.available_host_memory = lambda: MIB
    error = raised(courtesy.yield_memory)
    return {"error": error, "unmoved": allocated() == start and digest(tensor) == before, "restored": courtesy.restore()}


def interrupted():
    """Interrupts a restore, and a yield, after some of the copies."""
    tensors = [filled(torch.empty(number * MIB, device="cuda")) for number in (1, 2, 3)]
    before, courtesy = digest(*tensors), memlab.Courtesy()
    from memlab.compat._courtesy import host_copies

    class Interrupting:
        """Counts copies and interrupts the second."""

        def __init__(self, all_bytes):
            self.all_bytes, self.calls = all_bytes, 0

        def __call__(self, storage):
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return self.all_bytes(storage)

    def interrupt(call):
        original = host_copies.all_bytes
        host_copies.all_bytes = Interrupting(original)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            host_copies.all_bytes = original

    found = {"yield": interrupt(courtesy.yield_memory), "unmoved": digest(*tensors) == before}
    found["moved"] = courtesy.yield_memory().moved
    found["restore"] = interrupt(courtesy.restore)
    found["restored"] = courtesy.restore()
    return found | {"same": digest(*tensors) == before}


def streams():
    """Memory that was allocated for another stream still belongs to that stream afterwards."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        there = filled(torch.empty(MIB, device="cuda"))
    here = filled(torch.empty(MIB, device="cuda"))

    def stream_of(tensor):
        for segment in torch.cuda.memory_snapshot():
            if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
                return segment["stream"]

    before = digest(there, here)
    with memlab.Courtesy():
        pass
    return {"streams": [stream_of(there) == side.cuda_stream, stream_of(here)], "same": digest(there, here) == before}


def repeated():
    """Yields twice, restores twice, nests `with`, and drops a Courtesy."""
    found = {"restored": memlab.Courtesy().restore()}
    first = filled(torch.empty(MIB, device="cuda"))
    before = digest(first)
    moved = [memlab.Courtesy().yield_memory().moved]
    gc.collect()
    second = None
    if sys.argv[2:] != ["offloaded"]:
        second = filled(torch.empty(2 * MIB, device="cuda"))
    moved.append(memlab.Courtesy().yield_memory().moved)
    moved.append(memlab.Courtesy().yield_memory().moved)
    found["moved"], found["allocated"] = moved, allocated()
    courtesy = memlab.Courtesy()
    found["restored again"] = [courtesy.restore(), courtesy.restore()]
    found["same"] = digest(first) == before
    with courtesy as outer:
        with outer:
            pass
        with memlab.Courtesy():
            pass
        found["inside"] = allocated()
    found["same after"] = digest(first) == before and (second is None or second.cpu().sum().item() > 0)
    return found


def meanwhile():
    """Frees tensors, or gives them new memory, while they are in host memory."""
    kept, freed, renewed = (filled(torch.empty(MIB, device="cuda")) for _ in range(3))
    storage = filled(torch.empty(MIB, device="cuda")).untyped_storage()
    before, courtesy = digest(kept), memlab.Courtesy()
    moved = courtesy.yield_memory().moved
    del freed
    renewed.untyped_storage().resize_(4 * MIB)
    filled(renewed)
    new = digest(renewed)
    restored = courtesy.restore()
    same = [digest(kept) == before, digest(renewed) == new, storage.nbytes() == 4 * MIB]
    return {"moved": moved, "restored": restored, "same": same, "allocated": allocated()}


def devices():
    """Uses two GPUs; a third has no context."""
    tensors = [filled(torch.empty(MIB, device=f"cuda:{number}")) for number in (0, 1)]
    before = digest(*tensors)
    courtesy = memlab.Courtesy()
    moved = courtesy.yield_memory().moved
    during = [torch.cuda.memory_allocated(number) for number in (0, 1)]
    courtesy.restore()
    where = [tensor.device.index for tensor in tensors]
    same = digest(*tensors) == before and torch.cuda.current_device() == 0
    return {"moved": moved, "during": during, "same": same, "where": where, "third": torch._C._cuda_hasPrimaryContext(2)}


def nothing():
    """A program that has not used a GPU."""
    with memlab.Courtesy() as courtesy:
        moved = courtesy.yield_memory().moved
    return {"moved": moved, "restored": courtesy.restore(), "initialized": torch.cuda.is_initialized()}


print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:3] if sys.argv[1] == "training" else ())), flush=True)
