"""Lockstep: memory of waiting micro-batches."""

import ctypes
import weakref

import pytest
import torch
from memlab import _native
from memlab._activations.copy_streams import CopyStream
from memlab._batches import lockstep_history, threaded_batch
from memlab._batches.lockstep_history import LockstepHistory, MicrobatchHistory
from memlab._batches.nested import Samples
from memlab._batches.spilling import MicrobatchMemory, Spilling
from test_lockstep import assert_equal, in_double_precision, lockstep, made, numbers, own_forward, residual_network
from torch import nn
from torch.nn import functional

__all__ = ["in_double_precision"]  # All tests here use it.


def mean_of_squares(outputs):
    return outputs.square().mean()


@pytest.fixture
def returns(monkeypatch):
    """Keeps nothing resident, allows many pending copies, slows copies down, and fills memory with NaN before data returns
    to it. Returns the number of storages on their way back at each expected thread."""
    spilling, resize, expect = Spilling.__init__, torch.UntypedStorage.resize_, MicrobatchMemory.expect
    counts = []

    def filled(storage, nbytes):
        resize(storage, nbytes)
        ctypes.memset(storage.data_ptr(), 0xFF, nbytes)

    def counting(memory):
        expect(memory)
        counts.append(len(memory._spilling.returning))

    monkeypatch.setattr(
        Spilling, "__init__", lambda self, device, room, pending_nbytes=0: spilling(self, device, 0, 8 << 20)
    )
    monkeypatch.setattr(torch.UntypedStorage, "resize_", filled)
    monkeypatch.setattr(MicrobatchMemory, "expect", counting)
    monkeypatch.setattr(CopyStream.of(torch.device("cpu")), "native", _native.OffloadStream(None, 200e6))
    return counts


class Branches(nn.Module):
    """Keeps tensors alive across a BatchNorm beside autograd's saved ones, and a table that the first forward creates."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 4)
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.pad = torch.ones(1 << 18)
            self.table = torch.arange(256.0 * 256).reshape(256, 256).cos().repeat(2, 1)
        x = x * self.table[:256]
        branch = x.detach().exp()
        x = self.norm(self.first(x))
        self.features = x.detach() * 2
        return self.last(x.tanh() + 0.01 * branch.log() * self.table[256:]).mean(1)


@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_spilling_beside_a_computing_thread(returns, pieces):
    """GIVEN waiting threads on the host, one offloading and one loading while another computes
    WHEN one reads another's result, also with only two
    THEN gradients equal those of the full batch, in each of several batches."""
    inputs = torch.randn(4 * pieces, 256, 256, generator=numbers(1))
    ours, theirs = made(Branches), made(Branches)
    for _ in range(2):
        lockstep(ours, inputs, 4, spill=True).run(mean_of_squares)
        mean_of_squares(theirs(inputs)).backward()
        assert_equal(ours, theirs)
    assert any(returns)


def test_a_loss_may_look_at_what_layers_have_made(returns):
    # GIVEN a model that keeps features of its last forward; WHEN the loss reads them; THEN they are resident
    inputs = torch.randn(12, 256, 256, generator=numbers(1))
    ours, theirs = made(Branches), made(Branches)
    theirs(inputs)
    seen = []
    lockstep(ours, inputs, 4, spill=True).run(lambda outputs: (seen.append(ours.features.clone()), outputs.mean())[1])
    torch.testing.assert_close(seen[0], theirs.features[8:])


def test_a_failure_whose_memory_cannot_come_back_undoes_the_rest(returns, monkeypatch):
    """GIVEN a host or a GPU where offloaded memory cannot be loaded back
    WHEN a model fails
    THEN its own error is raised, once, and buffers are as before."""

    class Failing(Branches):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            super().forward(x)
            if torch.is_grad_enabled():
                monkeypatch.setattr(Spilling, "arrive", no_memory)
                failures.append(len(x))
            raise ZeroDivisionError

    def no_memory(self, key):
        raise torch.cuda.OutOfMemoryError("planned")

    model, failures = made(Failing), []
    with pytest.raises(ZeroDivisionError):
        lockstep(model, torch.randn(8, 256, 256), 4, spill=True).run(mean_of_squares)
    assert model.calls == 0 and failures == [4]


def test_a_history_belongs_to_one_kind_of_batch():
    # GIVEN a batch that fits; THEN larger samples, another mode, device, or memory are not assumed to fit
    model, pieces = residual_network(), [range(2), range(2, 4)]
    cpu, card = torch.device("cpu"), torch.device("cuda", 0)
    known = LockstepHistory.of(model, cpu, None, pieces, "small")
    known.fits = True
    assert LockstepHistory.of(model, cpu, None, pieces, "small") is known
    assert not LockstepHistory.of(model, cpu, None, pieces, "large").fits
    assert not LockstepHistory.of(model, card, None, pieces, "small").fits
    assert not LockstepHistory.of(model, cpu, 1 << 30, pieces, "small").fits
    assert not LockstepHistory.of(model.eval(), cpu, None, pieces, "small").fits


class Tables(nn.Module):
    """Keeps a table from its first forward, and the features of its last forward."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        self.table, self.kept = None, []

    def forward(self, x):
        x = self.first(x)
        if self.table is None:
            self.table = torch.arange(x[0].numel()).reshape(x[0].shape).cos()
        x = x + self.table
        if torch.is_grad_enabled():  # (A few samples run first, as a trial.)
            self.waiting = [one().untyped_storage().nbytes() for one in self.kept if one() is not None]
            self.kept.append(weakref.ref(x))
        self.last_features = self.norm(x)
        return self.last(torch.sin(self.last_features)).mean((2, 3))


def test_those_that_wait_are_on_the_host():
    """GIVEN micro-batches with activations of MiBs, and a table that all of them use
    WHEN they wait for each other
    THEN waiting ones use no memory, gradients are the same, and the model's kept tensors are intact afterwards."""
    inputs = torch.randn(6, 3, 160, 160, generator=numbers(1))
    ours, theirs = made(Tables), made(Tables)
    theirs(inputs).square().mean().backward()
    lockstep(ours, inputs, 2, spill=True).run(mean_of_squares)
    assert_equal(ours, theirs)
    assert ours.waiting == [0, 0]
    torch.testing.assert_close(ours.last_features, theirs.last_features[4:])
    torch.testing.assert_close(ours.table, theirs.table)


def test_tensors_stay_while_they_fit():
    # GIVEN three tensors of a thread, of 2, 4 and 2 MiB, and room for 5 MiB
    spilling = Spilling(torch.device("cpu"), room=5 << 20)
    memory = MicrobatchMemory(spilling, MicrobatchHistory(0))
    with memory:
        tensors = [torch.full((size << 17,), float(size)) for size in (2, 4, 2)]
    # WHEN it waits; THEN the tensor that does not fit is offloaded
    memory.suspend([])
    assert [one.untyped_storage().nbytes() >> 20 for one in tensors] == [2, 0, 2]
    # AND WHEN it resumes; THEN all are resident, and the room is as before
    memory.resume()
    assert all(bool((one == size).all()) for one, size in zip(tensors, (2, 4, 2), strict=True))
    assert spilling.room == 5 << 20


@pytest.mark.parametrize("keep", [0, 3 << 20, 1 << 30], ids=["keeps nothing", "keeps 3 MiB", "keeps all"])
@pytest.mark.parametrize("room", [0, 8 << 20, 64 << 20], ids=["no room", "8 MiB", "64 MiB"])
@pytest.mark.parametrize("kind", [residual_network, own_forward])
def test_spilled_gradients_of_large_samples(kind, room, keep, monkeypatch):
    """GIVEN activations above the smallest offloaded size, and limits on waiting memory, pending copies and autograd's saved
    tensors
    WHEN several steps run, the later ones with the order of the first
    THEN gradients equal those of the full batch."""
    monkeypatch.setattr(lockstep_history, "_room", lambda device, memory: room)
    inputs = torch.randn(5, 3, 96, 96, generator=numbers(1))
    if kind is own_forward:
        inputs = functional.pad(inputs[:, :, :8, :8], (0, 0, 0, 0))
    for size in (1, 2):
        ours, theirs = made(kind), made(kind)
        pieces = [range(begin, min(begin + size, 5)) for begin in range(0, 5, size)]
        for _ in range(3):
            for history in LockstepHistory.of(ours, torch.device("cpu"), None, pieces, Samples(inputs).form).histories:
                history.keep_nbytes = keep
            theirs(inputs).square().mean().backward()
            lockstep(ours, inputs, size, spill=True).run(mean_of_squares)
        assert_equal(ours, theirs)


def test_batches_that_fit_are_not_copied(monkeypatch):
    # GIVEN a model with a batch that is known to fit
    inputs = torch.randn(4, 3, 96, 96, generator=numbers(1))
    ours, theirs = made(residual_network), made(residual_network)
    LockstepHistory.of(ours, torch.device("cpu"), None, [range(2), range(2, 4)], Samples(inputs).form).fits = True
    monkeypatch.setattr(threaded_batch, "MicrobatchMemory", None)
    # WHEN it runs; THEN nothing is offloaded, and gradients are the same
    lockstep(ours, inputs, 2, spill=True).run(mean_of_squares)
    theirs(inputs).square().mean().backward()
    assert_equal(ours, theirs)
