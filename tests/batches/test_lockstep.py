"""Lockstep: full-batch gradients through BatchNorm in training, from micro-batches that share statistics."""

import copy
import dataclasses
import signal
import threading
from pathlib import Path

import pytest
import torch
from conftest import microbatch_threads
from memlab._batches.batch import Batch
from memlab._batches.lockstep import Lockstep
from memlab._batches.microbatch_threads import MicrobatchThread
from memlab._batches.observers import observing
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from waiting import wait_until

BATCH, CLASSES = 13, 5
FUTEX = "202"  # Number of the system call in which threads wait.
# One sample each, with a remainder, with a remainder of one sample, and the full batch.
SIZES = [1, 4, 5, 6, 13]


@pytest.fixture(autouse=True)
def in_double_precision():
    before, microbatch_threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # Each micro-batch has its own.
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(microbatch_threads)
    # Checks that a test left no patch behind.
    assert functional.batch_norm.__module__ == "torch.nn.functional"


def numbers(seed):
    return torch.Generator().manual_seed(seed)


IMAGES = torch.randn(BATCH, 3, 8, 8, generator=numbers(1), dtype=torch.float64) + 0.5
VECTORS = torch.randn(BATCH, 7, generator=numbers(2), dtype=torch.float64)
LABELS = torch.randint(0, CLASSES, (BATCH,), generator=numbers(3)).where(torch.arange(BATCH) >= 3, -100)
WEIGHTS = torch.tensor([0.3, 2.0, 1.0, 0.7, 1.9], dtype=torch.float64)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.other_norm = nn.BatchNorm2d(channels, momentum=None)

    def forward(self, x):
        y = functional.relu(self.norm(self.first(x)), inplace=True)
        return functional.relu(x + self.other_norm(self.second(y)), inplace=True)


def residual_network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), nn.MaxPool2d(2), Residual(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def perceptron():
    return nn.Sequential(
        nn.BatchNorm1d(7), nn.Linear(7, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 16),
        nn.BatchNorm1d(16, affine=False), nn.Linear(16, 16), nn.BatchNorm1d(16, track_running_stats=False),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


def sequences():
    return nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(20, CLASSES)
    )


def volumes():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 4, 2), nn.BatchNorm3d(4), nn.ELU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


def partly_frozen():
    model = residual_network()
    model[3].eval()
    model[1].weight.requires_grad_(False)
    model[5].norm.eval()
    return model


def synchronised():
    return nn.SyncBatchNorm.convert_sync_batchnorm(residual_network())


def without_running_statistics_in_eval():
    """BatchNorm that uses the batch's statistics in evaluation too."""
    return nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9, track_running_stats=False), nn.Linear(9, CLASSES)).eval()


def own_forward():
    """A subclass whose forward does more than BatchNorm."""

    class WithActivation(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).sin()

    return nn.Sequential(nn.Conv2d(3, 4, 3), WithActivation(4), nn.Flatten(), nn.Linear(144, CLASSES))


def spectral():
    """A buffer that each forward writes, independent of the samples."""
    inner = nn.utils.parametrizations.spectral_norm(nn.Linear(7, 9))
    return nn.Sequential(inner, nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, CLASSES))


MODELS = {
    "residual": (residual_network, IMAGES),
    "perceptron": (perceptron, VECTORS),
    "sequences": (sequences, VECTORS),
    "volumes": (volumes, IMAGES),
    "partly frozen": (partly_frozen, IMAGES),
    "synchronised": (synchronised, IMAGES),
    "never running statistics": (without_running_statistics_in_eval, VECTORS),
    "own forward": (own_forward, IMAGES),
    "spectral": (spectral, VECTORS),
}


def made(kind):
    torch.manual_seed(0)
    return kind()


def cross_entropy(outputs):
    return functional.cross_entropy(outputs, LABELS, weight=WEIGHTS)


def contrastive(outputs):
    features = functional.normalize(outputs)
    return functional.cross_entropy(features @ features.T / 0.3, torch.arange(len(features)).flip(0))


def lockstep(model, inputs, size, spill=None, exact=True):
    return Lockstep(Batch.of(model, inputs, micro_batch=size, memory="auto", exact=exact), spill=spill)


def gradients(model):
    return torch.cat([torch.zeros(1) if one.grad is None else one.grad.flatten() for one in model.parameters()])


def assert_equal(ours, theirs, most=1e-13):
    """Asserts that gradients and buffers of two models are equal, up to rounding."""
    assert float((gradients(ours) - gradients(theirs)).norm() / gradients(theirs).norm()) <= most
    for (name, one), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=most, atol=most, msg=name)
        assert one.is_floating_point() or torch.equal(one, other)


@pytest.mark.parametrize("spill", [False, True], ids=["", "spilled"])
@pytest.mark.parametrize("loss_fn", [cross_entropy, contrastive])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_running_statistics_are_those_of_the_whole_batch(name, loss_fn, spill):
    """GIVEN a model with BatchNorm in training, and any loss
    WHEN a batch runs in micro-batches of any size
    THEN loss, gradients, running statistics and counters equal those of the full batch, up to rounding."""
    kind, inputs = MODELS[name]
    for size in SIZES:
        ours, theirs = made(kind), made(kind)
        expected = loss_fn(theirs(inputs))
        expected.backward()
        loss = lockstep(ours, inputs, size, spill).run(loss_fn)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-13, atol=1e-13)
        assert not loss.requires_grad
        assert_equal(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_whose_loss_is_computed_elsewhere(name):
    """GIVEN a model with BatchNorm in training, and a custom loop
    WHEN it gets outputs, computes a loss, and calls backward
    THEN gradients and statistics equal those of the full batch; a second backward is refused."""
    kind, inputs = MODELS[name]
    for size in SIZES:
        ours, theirs = made(kind), made(kind)
        contrastive(theirs(inputs)).backward()
        outputs = lockstep(ours, inputs, size).outputs()
        loss = contrastive(outputs)
        loss.backward(retain_graph=True)
        assert_equal(ours, theirs)
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        assert not microbatch_threads()


def test_outputs_of_which_nobody_wants_gradients():
    # GIVEN outputs in lockstep; WHEN they are dropped; THEN the threads end, and statistics have moved once
    ours, theirs = made(perceptron), made(perceptron)
    outputs = lockstep(ours, VECTORS, 5).outputs()
    theirs(VECTORS)
    assert microbatch_threads() and outputs.requires_grad
    del outputs
    assert not microbatch_threads()
    torch.testing.assert_close(list(ours.buffers()), list(theirs.buffers()))


def test_gradients_of_inputs_of_a_loop_of_ones_own():
    # GIVEN inputs from another model; WHEN a loss of the outputs runs backward; THEN that model gets its gradients
    results = []
    for size in (None, 4):
        discriminator, generator = made(Discriminator), made(lambda: nn.Linear(7, 7))
        inputs = (VECTORS, generator(VECTORS.flip(0)))
        outputs = discriminator(*inputs) if size is None else lockstep(discriminator, inputs, size).outputs()
        (outputs["real"].square().mean() + outputs["generated"][0].exp().mean()).backward()
        results.append(nn.ModuleList([discriminator, generator]))
    assert_equal(results[1], results[0])


def test_fifty_steps():
    # GIVEN two copies of a model; WHEN one trains with full batches and the other in lockstep; THEN they stay equal
    ours, theirs = made(residual_network), made(residual_network)
    optimizers = [torch.optim.SGD(model.parameters(), 0.05, momentum=0.9) for model in (ours, theirs)]
    for step in range(50):
        inputs = torch.randn(BATCH, 3, 8, 8, generator=numbers(step))
        lockstep(ours, inputs, 5).run(cross_entropy)
        cross_entropy(theirs(inputs)).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert_equal(ours, theirs, 1e-10)
        for optimizer in optimizers:
            optimizer.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


class Discriminator(nn.Module):
    """A model whose layers see two batches each."""

    def __init__(self):
        super().__init__()
        self.inner = perceptron()

    def forward(self, real, generated):
        return {"real": self.inner(real)[:, 0], "generated": (self.inner(generated)[:, 0], "text")}


def test_a_discriminator_and_the_gradients_of_its_inputs():
    # GIVEN a GAN's discriminator, whose second input comes from another model
    def loss_fn(outputs):
        return functional.softplus(-outputs["real"]).mean() + functional.softplus(outputs["generated"][0]).mean()

    results = []
    for size in (None, 4):
        discriminator, generator = made(Discriminator), made(lambda: nn.Linear(7, 7))
        inputs = (VECTORS, generator(VECTORS.flip(0)))
        # WHEN it trains in lockstep
        if size is None:
            loss_fn(discriminator(*inputs)).backward()
        else:
            lockstep(discriminator, inputs, size).run(loss_fn)
        results.append(nn.ModuleList([discriminator, generator]))
    # THEN its gradients, its statistics, which move twice, and the generator's gradients equal those of the full batch
    assert_equal(results[1], results[0])
    assert results[1][0].inner[0].num_batches_tracked == 2


def test_parameters_of_the_loss_and_a_scaler():
    # GIVEN a loss with its own parameter; WHEN the loss is scaled for backward; THEN all gradients are scaled
    temperature = nn.Parameter(torch.tensor(0.7))
    ours, theirs = made(perceptron), made(perceptron)
    expected = (theirs(VECTORS) * temperature).square().mean()
    (8 * expected).backward()
    theirs_too, temperature.grad = temperature.grad, None
    loss = lockstep(ours, VECTORS, 4).run(lambda outputs: (outputs * temperature).square().mean(), lambda loss: 8 * loss)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(temperature.grad, theirs_too)
    assert_equal(ours, theirs)


# Random numbers. ----------------------------------------------------------------------------------------------------------


def with_dropout():
    return nn.Sequential(
        nn.Linear(7, 32), nn.Dropout(0.5), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES)
    )


def test_dropout_is_deterministic_and_differs_between_micro_batches():
    # GIVEN a model with dropout around BatchNorm, and identical samples
    masks = []
    inputs = VECTORS[:1].expand(BATCH, 7)
    model = made(with_dropout)
    lockstep(model, inputs, 4).run(cross_entropy)  # (The first batch also tests whether samples mix elsewhere.)
    model[1].register_forward_hook(lambda module, arguments, output: masks.append(output.detach() != 0))
    # WHEN the same seed is set twice
    runs, after = [], []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(5)
        lockstep(model, inputs, 4).run(cross_entropy)
        runs.append(gradients(model))
        after.append(torch.rand(1))
    # THEN gradients and later random numbers are the same, and masks differ between micro-batches
    assert torch.equal(*runs) and torch.equal(*after)
    assert len(masks) == 8 and torch.equal(masks[0], masks[4])
    assert len({tuple(mask.flatten().tolist()) for mask in masks[:3]}) == 3
    # AND the next batch has other masks
    lockstep(model, inputs, 4).run(cross_entropy)
    assert not any(torch.equal(before, now) for before, now in zip(masks[:4], masks[8:], strict=True))


def test_one_micro_batch_draws_what_the_whole_batch_would():
    # GIVEN a micro-batch with the full batch; THEN dropout and later random numbers are bit-identical
    ours, theirs = made(with_dropout), made(with_dropout)
    torch.manual_seed(5)
    cross_entropy(theirs(VECTORS)).backward()
    expected = torch.rand(1)
    torch.manual_seed(5)
    lockstep(ours, VECTORS, BATCH).run(cross_entropy)
    assert torch.equal(torch.rand(1), expected)
    assert_equal(ours, theirs)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(7, 7), with_dropout(), nn.Linear(CLASSES, CLASSES)
        self.options = {} if reentrant is None else {"use_reentrant": reentrant}

    def forward(self, x):
        x = self.first(x)
        return self.last(checkpoint(self.inner, x, **self.options) if self.options else self.inner(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_draw_again_what_they_drew(reentrant):
    # GIVEN a checkpoint around BatchNorm and dropout; WHEN its forward runs again in lockstep
    ours, theirs = made(lambda: Checkpointed(reentrant)), made(lambda: Checkpointed(None))
    for model in (theirs, ours):
        torch.manual_seed(3)
        lockstep(model, VECTORS, 4).run(cross_entropy)
    # THEN gradients equal those without the checkpoint
    assert float((gradients(ours) - gradients(theirs)).norm() / gradients(theirs).norm()) <= 1e-13


# State of the caller's thread. --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_statistics_in_float32(dtype):
    """GIVEN a model in half precision, or in float32 under autocast
    WHEN it runs in lockstep
    THEN its gradients are as close to those in double precision as the full batch's are."""
    exact = made(residual_network)
    cross_entropy(exact(IMAGES)).backward()

    def error(model):
        return float((gradients(model).double() - gradients(exact)).norm() / gradients(exact).norm())

    for is_autocast in (True, False):
        errors = []
        for size in (None, 2):
            model = made(residual_network).to(torch.float32 if is_autocast else dtype)
            inputs = IMAGES.float() if is_autocast else IMAGES.to(dtype)
            with torch.autocast("cpu", dtype, enabled=is_autocast):
                if size is None:
                    loss = cross_entropy_in_float(model(inputs))
                else:
                    lockstep(model, inputs, size).run(cross_entropy_in_float)
            if size is None:
                loss.backward()
            errors.append(error(model))
        assert errors[1] <= 1.5 * errors[0] + 1e-3, (is_autocast, errors)


def cross_entropy_in_float(outputs):
    return functional.cross_entropy(outputs.float(), LABELS, weight=WEIGHTS.float())


def test_the_callers_hooks_modes_and_devices_reach_the_threads():
    # GIVEN a default device, autocast and saved-tensor hooks, all local to the calling thread
    seen = []

    class Curious(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(7)

        def forward(self, x):
            seen.append((torch.empty(0).device.type, torch.is_autocast_enabled("cpu"), torch.get_default_dtype()))
            return self.norm(x) * 2

    packed = []
    model = Curious()
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: packed.append(one.shape) or one, lambda one: one)
    with hooks, torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        lockstep(model, VECTORS, 5).run(lambda outputs: outputs.square().mean())
    # THEN micro-batches run with them too
    # (Earlier forwards tested whether samples mix elsewhere.)
    assert seen[-3:] == [("meta", True, torch.float64)] * 3
    assert packed.count((5, 7)) >= 2


def test_forward_hooks_run_once_in_each_micro_batch():
    model, seen, done = made(perceptron), [], []
    model[0].register_forward_hook(lambda module, arguments, output: seen.append(len(output)))
    with observing(lambda rows, samples: done.append((rows, samples))):
        lockstep(model, VECTORS, 5).run(cross_entropy)
    assert seen == [5, 5, 3]
    # AND the progress callback receives each micro-batch
    assert done == [(range(0, 5), 13), (range(5, 10), 13), (range(10, 13), 13)]


# Failures and refusals. ---------------------------------------------------------------------------------------------------


class Failing(nn.Module):
    """Calls `action` in the forward or backward of the third micro-batch, between two BatchNorms."""

    def __init__(self, action, when):
        super().__init__()
        self.first, self.inner, self.last = perceptron(), nn.Linear(CLASSES, 7), perceptron()
        self.action, self.when, self.calls = action, when, 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x)
        third = len(x) == 3
        if third and self.when == "forward":
            self.action()
        if third and self.when == "backward":
            x.register_hook(lambda gradient: self.action())
        return self.last(self.inner(x))


@pytest.mark.parametrize("spill", [False, True], ids=["", "spilled"])
@pytest.mark.parametrize("when", ["forward", "loss", "backward"])
@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_ends_all_micro_batches(kind, when, spill):
    """GIVEN a model, or a loss, that fails
    WHEN one micro-batch reaches the failure while others wait
    THEN all of them end, the error reaches the caller, and buffers and random numbers are as before."""

    def action():
        raise kind("of the model")

    model = made(lambda: Failing(action, when))
    before, drawn = copy.deepcopy(dict(model.named_buffers())), torch.get_rng_state()
    with pytest.raises(kind, match="of the model"):
        lockstep(model, VECTORS, 5, spill).run(lambda outputs: action() if when == "loss" else cross_entropy(outputs))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert torch.equal(torch.get_rng_state(), drawn)
    assert when == "backward" or all(parameter.grad is None for parameter in model.parameters())
    # AND the next batch is unaffected
    model.zero_grad()
    model.when = "never"
    theirs = copy.deepcopy(model)
    cross_entropy(theirs(VECTORS)).backward()
    lockstep(model, VECTORS, 5, spill).run(cross_entropy)
    assert_equal(model, theirs)


def waits_for_a_lock(thread):
    """Reads the system call of a thread: a wait for a lock has no timeout, a wait for the interpreter has one."""
    number, *arguments = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()
    return number == FUTEX and int(arguments[3], 16) == 0


def test_an_interrupt_while_a_micro_batch_computes(request):
    # GIVEN a micro-batch that computes until it is stopped, in a program that receives interrupts (a program started in the
    # background does not)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def action():
        # A signal just before the main thread begins to wait would not end the wait.
        wait_until(lambda: waits_for_a_lock(threading.main_thread()))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        wait_until(lambda: MicrobatchThread.current()._is_ending)

    model = made(lambda: Failing(action, "forward"))
    # WHEN the program is interrupted; THEN it receives the interrupt, and no thread remains
    with pytest.raises(KeyboardInterrupt):
        lockstep(model, VECTORS, 5).run(cross_entropy)
    assert not microbatch_threads()


class Wayward(nn.Module):
    """Takes another branch for small micro-batches."""

    def __init__(self, way):
        super().__init__()
        self.norm, self.other, self.way = nn.BatchNorm1d(7), nn.BatchNorm1d(7), way

    def forward(self, x):
        if len(x) >= 5:
            return self.norm(x)
        if self.way == "another":
            return self.other(x)
        return x * 2 if self.way == "none" else self.norm(self.norm(x))


@pytest.mark.parametrize("way", ["another", "none", "more"])
def test_micro_batches_that_go_different_ways_are_refused(way):
    # GIVEN a model that runs other layers for other samples; THEN an explanatory error refuses it, and the model is
    # unchanged
    model = Wayward(way)
    with pytest.raises(
        RuntimeError, match=r"samples 0 to 4 went on to .*, but samples 10 to 12 to .*depends on the samples"
    ):
        lockstep(model, VECTORS, 5).run(lambda outputs: outputs.square().mean())
    assert model.norm.num_batches_tracked == 0 and not model.norm.running_mean.any()


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(7)
        self.register_buffer("seen", torch.zeros(7))

    def forward(self, x):
        self.seen.lerp_(x.detach().mean(0), 0.1)
        return self.norm(x)


def test_other_buffers_that_depend_on_the_samples_are_refused():
    model = RunningMean()
    with pytest.raises(RuntimeError, match="the buffer seen depends on the samples"):
        lockstep(model, VECTORS, 5).run(lambda outputs: outputs.square().mean())
    assert not model.seen.any() and model.norm.num_batches_tracked == 0
    # WHEN exact=False; THEN the model is as after the last micro-batch, and BatchNorm is exact
    lockstep(model, VECTORS, 5, exact=False).run(lambda outputs: outputs.square().mean())
    torch.testing.assert_close(model.seen, 0.1 * VECTORS[10:].mean(0))
    torch.testing.assert_close(model.norm.running_mean, 0.1 * VECTORS.mean(0))


def test_unsupported_uses_of_lockstep_are_refused():
    with pytest.raises(ValueError, match="more than 1 value"):
        lockstep(perceptron(), VECTORS[:1], 1).run(lambda outputs: outputs.mean())
    with pytest.raises(ValueError, match=r"shape \(13,\): it must be"):
        lockstep(perceptron(), VECTORS, 5).run(lambda outputs: outputs.mean(1))
    with torch.no_grad(), pytest.raises(RuntimeError, match="gradients are off"):
        lockstep(perceptron(), VECTORS, 5).run(lambda outputs: outputs.mean())
    with pytest.raises(RuntimeError, match="is compiled"):
        lockstep(torch.compile(perceptron()), VECTORS, 5)


def test_running_out_of_memory_begins_again_with_half_the_size():
    # GIVEN a model that fits at most three samples at once
    sizes = []

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            sizes.append(len(x))
            if len(x) > 3:
                raise torch.cuda.OutOfMemoryError("planned")
            return self.inner(x)

    ours, theirs = made(Large), made(perceptron)
    cross_entropy(theirs(VECTORS)).backward()
    # WHEN the requested micro-batches are larger; THEN smaller ones run, with exact results
    lockstep(ours, VECTORS, 8).run(cross_entropy)
    assert sizes == [8, 4, 2, 2, 2, 2, 2, 2, 1]
    assert_equal(ours, theirs)


class Unmeasured:
    """A sizing without measurements."""

    def size(self, left):
        return 1

    def failed(self, size):
        pass


def test_sizes_that_nobody_asked_for():
    # GIVEN a batch of 70 samples, no given size, and a model for which three samples at once do not fit
    sizes = []

    class Recording(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            sizes.append(len(x))
            if sizes == [3]:
                raise torch.cuda.OutOfMemoryError("planned")
            return self.inner(x)

    torch.manual_seed(0)
    model = Recording()
    batch = Batch.of(model, torch.randn(70, 7), micro_batch=1, memory="auto", exact=True)
    # WHEN it runs; THEN at most 32 micro-batches run, unless they had to be smaller, in this batch and the next
    for expected in ([3, *[1] * 70], [1] * 70):
        Lockstep(dataclasses.replace(batch, sizing=Unmeasured())).run(lambda outputs: outputs.square().mean())
        assert sizes == expected
        sizes.clear()
