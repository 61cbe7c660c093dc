"""offload_activations: memory is freed, also without a backward; writes to saved tensors are refused."""

import gc
import json
import weakref
from pathlib import Path

import memlab as package
import pytest
import torch
from conftest import PYTHON
from memlab import _native
from memlab._activations import copy_streams, offloaded_forward
from memlab._activations.offload_schedule import OffloadSchedule
from memlab._activations.storage_contents import KeptTensor
from memlab._paging.torch_private import StorageWeakRef, open_modes
from offloaded import STEPS, WAYS, around_forwards, check, mlp, numbers, squares
from torch import nn
from torch.utils.checkpoint import checkpoint

PROGRAMS = Path(__file__).parent / "programs"

block = pytest.fixture(params=WAYS)(around_forwards)


@pytest.fixture
def slow_stream(monkeypatch):
    """A private copy stream with slow copies, which records its copies."""
    copy_stream = copy_streams.CopyStream(torch.device("cpu"))
    copy_stream.native = _native.OffloadStream(None, 20e6)
    monkeypatch.setattr(copy_streams, "_COPY_STREAMS", {torch.device("cpu"): copy_stream})
    copy_stream.begun = []
    save = copy_streams.CopyStream.save

    def watched(self, storage, stream):
        copy = save(self, storage, stream)
        if copy is not None:
            copy = Watched(copy)
            self.begun.append(weakref.ref(copy))
            copy_stream.open.add(copy.number)
        return copy

    class Watched:
        """A copy that records waits for it."""

        def __init__(self, copy):
            self.copy, self.number = copy, len(copy_stream.begun)

        def wait_saved(self, stream):
            self.copy.wait_saved(stream)
            copy_stream.open.discard(self.number)

        def load(self, address, stream):
            copy_stream.open.add(self.number)
            self.copy.load(address, stream)

        def wait_loaded(self, stream):
            self.copy.wait_loaded(stream)
            copy_stream.open.discard(self.number)

    copy_stream.open = set()
    monkeypatch.setattr(copy_streams.CopyStream, "save", watched)
    return copy_stream


def step_of(model, block):
    with block():
        return model(numbers(48, 32)).square().mean()


@pytest.fixture(params=[False, True], ids=["as planned", "ahead"])
def ahead(request, monkeypatch):
    """In its second variant, offloads everything and starts to load it back when the forward ends."""
    if request.param:
        made = OffloadSchedule.__init__
        far = {"pending_nbytes": 0, "ahead_nbytes": 1 << 30, "keep_nbytes": 0, "offload_nbytes": 1 << 30}
        monkeypatch.setattr(OffloadSchedule, "__init__", lambda self, **options: made(self, **options | far))


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("then", ["nothing", "a part of it", "all of it"])
def test_everything_comes_back(block, slow_stream, then):
    """GIVEN forwards whose backward does not run, runs in part, or runs
    WHEN their graphs are freed
    THEN all memory is freed without a garbage collection, no copy is pending, and the host's slots are reused."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(8)))
    storages, places = [], []
    for layer in model:
        layer.register_forward_hook(lambda layer, inputs, out: storages.append(StorageWeakRef(out.untyped_storage())))
    for _ in range(STEPS):
        step_of(model, block).backward()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            loss = step_of(model, block)
            if then == "a part of it":
                torch.autograd.grad(loss, [model[5][0].weight])
            elif then == "all of it":
                loss.backward()
            del loss
            places.append(slow_stream.native.host_nbytes)
            assert all(storage.expired() for storage in storages)
            assert not slow_stream.open and not [copy for copy in slow_stream.begun if copy() is not None]
    finally:
        gc.enable()
    assert len(set(places)) == 1


class Shared(torch.autograd.Function):
    """Saves q, k and v, which share one storage, and a tensor with a stride of 0."""

    @staticmethod
    def forward(ctx, both, row):
        parts = both.chunk(3, -1)
        ctx.save_for_backward(*parts, both.t(), row.expand(48, 32), both[::2, 1:])
        ctx.strides = [one.stride() for one in (*parts, both.t(), row.expand(48, 32), both[::2, 1:])]
        return sum(parts).sum() + row.sum()

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        assert [one.stride() for one in saved] == ctx.strides
        assert len({one.untyped_storage().data_ptr() for one in (*saved[:4], saved[5])}) == 1
        assert torch.equal(torch.cat(saved[:3], -1), saved[3].t()) and torch.equal(saved[3].t()[::2, 1:], saved[5])
        return gradient * saved[3].t(), gradient * saved[4][:1]


def test_views_of_one_storage_are_views_of_one_storage(block):
    # GIVEN a function that saves views; THEN its backward gets them with their strides, over one storage
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.row = nn.Parameter(numbers(48, 96)), nn.Parameter(numbers(1, 32))

    check(block, Model(), lambda model, step: Shared.apply(model.both.sin() * 2, model.row.cos() * 3))


class Marked(torch.Tensor):
    pass


def written_activation(model, x):
    y = model[0](x).sigmoid()
    loss = (y * y.sin()).sum()
    return loss, y


def written_subclass(model, x):
    y = (model[0](x).as_subclass(Marked) * 1).exp()
    return y.sum().as_subclass(torch.Tensor), y


def written_weight(model, x):
    return model[2](model[0](x).tanh()).square().sum(), model[2].weight


def written_input(model, x):
    return model[0](x).tanh().square().sum(), x


@pytest.mark.parametrize("function", [written_activation, written_subclass, written_weight, written_input])
def test_overwritten_tensors_are_refused_or_right(block, function):
    # GIVEN a tensor that backward needs, WHEN the program writes to it first
    for step in range(STEPS):
        torch.manual_seed(0)
        model, x = mlp(), numbers(48, 32, seed=step)
        loss, _ = function(model, x.clone())
        expected = torch.autograd.grad(loss, [model[0].weight])
        with block():
            loss, tensor = function(model, x)
        with torch.no_grad():
            tensor.detach().mul_(2)
        # THEN PyTorch raises, or the gradient is that of the forward; never another value
        try:
            found = torch.autograd.grad(loss, [model[0].weight])
        except RuntimeError as error:
            assert "changed in place" in str(error)
        else:
            assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("block", WAYS[:2], indirect=True)
def test_a_kept_activation_that_was_written_to_is_refused(block):
    # GIVEN room for all activations from the third forward on; THEN a write raises PyTorch's error
    for step in range(STEPS):
        model = mlp()
        with block("64MiB"):
            loss, y = written_activation(model, numbers(48, 32))
        y.detach().add_(1)
        if step >= 2:
            with pytest.raises(RuntimeError, match="changed in place"):
                loss.backward()


def test_a_host_without_memory(block, monkeypatch, capfd):
    # GIVEN a host without free memory
    copy_stream = copy_streams.CopyStream(torch.device("cpu"))
    monkeypatch.setattr(copy_streams, "_COPY_STREAMS", {torch.device("cpu"): copy_stream})
    monkeypatch.setattr(copy_streams, "available_host_memory", lambda: 0)
    # THEN training gives the same results as without the block, with one warning
    check(block, mlp(), squares(torch.float32))
    assert copy_stream.native.host_nbytes == 0 and capfd.readouterr().err.count("no host memory is left") <= 1


def test_forwards_without_gradients_leave_no_trace(block):
    # GIVEN evaluations among the steps of a training run
    def loss_of(model, step):
        with torch.no_grad():
            model.eval()(numbers(48, 32, seed=step))
            model(numbers(12, 32))
        return model.train()(numbers(48, 32, seed=step)).square().mean()

    check(block, mlp(), loss_of, steps=8)
    copies = block.copies
    with block(), torch.no_grad():
        mlp()(numbers(48, 32))
    assert block.copies == copies


@pytest.mark.parametrize("budget", [-1, "much", "", 1.5, True, None, "-1GiB"])
def test_budgets_that_are_none(budget):
    with pytest.raises((ValueError, TypeError)):
        package.offload_activations(budget, device="cpu")


@pytest.mark.parametrize("budget", ["1MiB", "24KiB"], ids=["that fits", "that does not fit"])
def test_nothing_is_copied_that_fits(block, budget):
    """GIVEN a budget with room for all of autograd's saved tensors, or one without
    WHEN forwards run, the first of which have no record to plan from
    THEN only necessary copies are made, those saved first, and gradients are the same."""
    block.budget = budget
    check(block, mlp(), squares(torch.float32))
    assert (block.copies + block.repeats == 0) == (budget == "1MiB")


def deeper(model, step):
    """Runs all layers in the last steps, and only the first ones before."""
    x = numbers(48, 32, seed=step)
    for layer in model if step >= STEPS else model[:4]:
        x = layer(x)
    return x.square().mean()


def test_a_forward_that_fits_runs_without_the_mode(block):
    """GIVEN forwards whose saved tensors all fit
    WHEN the next ones save as much, and the last ones more than the budget
    THEN the former run without the mode that sees each operation, the latter open it, and gradients are the same."""
    block.budget = "100KiB"
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(16)))
    modes = []
    model[3].register_forward_hook(lambda *_: modes.append(open_modes()))
    model[15].register_forward_hook(lambda *_: modes.append(open_modes()))
    check(block, model, deeper, STEPS + 4)
    # The twin without the block ran first. Deep forwards have passed both layers.
    assert modes[len(modes) // 2 :] == [1, 1, 1, 0, 0] + [0, 1] + 3 * [1, 1]
    assert block.copies + block.repeats > 0


def wider(model, step):
    """Runs the same operations on more values in the last steps. The first one has no tensor."""
    torch.arange(2)
    return model[:4](numbers(400 if step >= STEPS else 48, 32, seed=step)).square().mean()


def deeper_at_times(model, step):
    return deeper(model, STEPS if step >= STEPS and step % 2 else 0)


@pytest.mark.parametrize("loss_of", [wider, deeper_at_times])
def test_forwards_that_fit_do_not_lift_the_budget_of_others(block, loss_of):
    """GIVEN forwards whose saved tensors all fit
    WHEN larger ones that begin alike follow, or run between them
    THEN the tensors that stay fit in the budget at the end of each forward, and gradients are the same."""
    block.budget = "60KiB"
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(16)))
    kept = []

    def backward(loss):
        kept.append(kept_nbytes(model))
        loss.backward()

    check(block, model, loss_of, STEPS + 8, backward=backward)
    assert block.copies > 0 and 0 < max(kept) <= 60 << 10


def kept_nbytes(model):
    """Bytes that autograd keeps in place, without those of the model."""
    kept = [one.tensor.untyped_storage() for one in gc.get_objects() if type(one) is KeptTensor]
    nbytes = {storage.data_ptr(): storage.nbytes() for storage in kept}
    return sum(nbytes.values()) - sum(nbytes.get(parameter.data_ptr(), 0) for parameter in model.parameters())


def test_backward_opens_no_mode(block):
    """GIVEN forwards that run without the mode, since they fit, and an earlier forward that saves tensors in backward
    WHEN its backward runs first in the block
    THEN the mode is not opened, and the block can end."""
    block.budget = "1MiB"
    check(block, mlp(), squares(torch.float32))
    model = mlp()
    loss = checkpoint(model, numbers(48, 32).requires_grad_(), use_reentrant=True).square().mean()
    with block():
        loss.backward()
        assert open_modes() == 0
    assert open_modes() == 0


def test_small_tensors_stay(block, monkeypatch):
    # GIVEN activations below the smallest offloaded size; THEN none is offloaded
    monkeypatch.setattr(offloaded_forward, "SMALLEST", 1 << 20)
    check(block, mlp(), squares(torch.float32))
    assert block.copies == block.repeats == 0


def memory_of(memlab, *arguments):
    program = [PROGRAMS / "offloaded_activations.py", *arguments, "--layers", 8, 24]
    run = memlab.run(PYTHON, *program, simgpu=("--card", "h100"), memory="4GiB", preload=False)
    assert run.code == 0, run.errors
    return json.loads(run.output.splitlines()[-1])


def test_memory_of_a_forward_grows_with_its_layers_without_the_block(memlab):
    (few, *_), (many, *_) = memory_of(memlab, "none")
    assert many > 2 * few


@pytest.mark.parametrize(
    "way", [[], ["--operation-ns", 100_000], ["--copies-only"]], ids=["recomputation", "both", "copies"]
)
def test_memory_is_that_of_the_budget_for_any_number_of_layers(memlab, way):
    """GIVEN training on a GPU, once with three times as many layers
    WHEN activations have a budget
    THEN allocation at the end of the forward stays the same, and so does the peak: the budget, the working memory of one
    operation, and the recomputed or prefetched tensors, which also stay within the budget."""
    budget = 64 << 20
    for peak, held, activation in memory_of(memlab, "64MiB", *way):
        assert held <= budget + activation
        assert peak <= 2 * budget + 4 * activation


def test_memory_that_another_stream_reads_is_not_given_to_others_meanwhile(memlab):
    """GIVEN a backward that reads autograd's saved tensors on a separate stream
    WHEN they are loaded from the host on the first stream that asks
    THEN the allocator knows that the other stream reads them."""
    program = PROGRAMS / "offloaded_streams.py"
    run = memlab.run(PYTHON, program, simgpu=("--card", "h100"), memory="4GiB", preload=False)
    assert run.code == 0, run.errors
    elsewhere, default = map(int, run.output.split())
    assert elsewhere >= 5 and default >= 1
