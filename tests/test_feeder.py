"""`memlab.Feeder`: each sample once per epoch, from any point on, whatever happens on the way."""

import gc
import itertools
import random
import threading
import traceback
from pathlib import Path

import feeding
import memlab
import numpy as np
import pytest
import torch

# Who reads: the loop itself, threads, worker processes.
READERS = {"inline": (0, False), "threads": (3, False), "processes": (2, True)}
EACH_READER = pytest.mark.parametrize("workers, processes", READERS.values(), ids=READERS)


def config(samples, batch_size, one_read_count=1, limit="1MiB", workers=0):
    return memlab.Config(
        limit, None, samples, (2,), (), None, one_read_count=one_read_count, batch_size=batch_size, workers=workers
    )


def feeder_of(
    ids, batch_size=4, read=feeding.read, label=feeding.label, workers=0, one_read_count=1, limit="1MiB", **options
):
    return memlab.Feeder(config(len(ids), batch_size, one_read_count, limit, workers), ids, ids, read, label, **options)


def rows(epoch):
    """All rows of an epoch, as (sample, value, label)."""
    return [(*x.tolist(), y.item()) for inputs, outputs in epoch for x, y in zip(inputs, outputs, strict=True)]


@pytest.fixture
def started():
    """Collects feeders, and closes them."""
    feeders = []
    yield lambda *arguments, **options: feeders.append(feeder_of(*arguments, **options)) or feeders[-1]
    for feeder in feeders:
        feeder.close()


def test_each_sample_once_in_a_thousand_feeders():
    # GIVEN feeders of random numbers of samples, batches, limits, workers and ranks
    chance = random.Random(13)
    for _ in range(1000):
        samples, one_read_count = chance.randrange(60), chance.choice((1, 1, 2))
        batch = one_read_count * chance.randint(1, 20)
        world_size = chance.choice((1, 1, 1, 2, 3))
        options = {
            "read": (feeding.read, feeding.read_two)[one_read_count - 1],
            "label": (feeding.label, feeding.label_two)[one_read_count - 1],
            "one_read_count": one_read_count,
            "workers": chance.choice((0, 0, 1, 3)),
            "shuffle": chance.random() < 0.5,
            "seed": chance.randrange(5),
            "limit": chance.choice((75_000, 80_000, 1_000_000)),
            "most_slots": chance.choice((None, 2, 5)),
        }
        ids = list(range(100, 100 + samples))
        epochs = []
        for rank in range(world_size):
            with feeder_of(ids, batch, rank=rank, world_size=world_size, **options) as feeder:
                # WHEN two epochs are read, THEN each batch is full but the last
                for number, epoch in enumerate(feeder.generate_epochs(2)):
                    batches = [(inputs.copy(), outputs.copy()) for inputs, outputs in epoch]
                    assert len(batches) == len(feeder)
                    assert all(len(inputs) == feeder.batch_size for inputs, _ in batches[:-1])
                    epochs.append((number, rows(batches)))
        for number in (0, 1):
            share = [one for which, each in epochs if which == number for one in each]
            # AND each variation of each sample is there once, with its own output
            assert all(sample == label for sample, _, label in share)
            expected = set(itertools.product(map(float, ids), range(one_read_count)))
            assert {(sample, variation) for sample, variation, _ in share} == expected
            # AND nothing twice, but what makes the ranks' shares equal
            assert len(share) == -(-samples // world_size) * world_size * one_read_count


@EACH_READER
def test_order(started, workers, processes):
    # GIVEN the same samples in feeders with workers and without
    ids = list(range(50))
    feeder = started(ids, 7, workers=workers, processes=processes)
    shuffled = started(ids, 7, workers=workers, processes=processes, shuffle=True, seed=3)
    # THEN the order is that of the lists
    assert [sample for sample, _, _ in rows(feeder)] == ids
    # AND shuffled it depends on the seed and the epoch only
    first, second = ([sample for sample, _, _ in rows(epoch)] for epoch in shuffled.generate_epochs(2))
    assert sorted(first) == sorted(second) == ids and first != second != ids
    alone = started(ids, 20, shuffle=True, seed=3)
    assert [[sample for sample, _, _ in rows(epoch)] for epoch in alone.generate_epochs(2)] == [first, second]
    assert [sample for sample, _, _ in rows(started(ids, 20, shuffle=True, seed=4))] != first


@EACH_READER
def test_resume_at_every_point(started, workers, processes):
    # GIVEN an epoch and the next, shuffled and augmented
    ids = list(range(11))
    options = {"read": feeding.augmented, "label": feeding.augmented_label, "shuffle": True, "seed": 5}
    feeder = started(ids, 3, workers=workers, processes=processes, **options)
    states, batches = [], []
    for epoch in feeder.generate_epochs(2):
        for inputs, outputs in epoch:
            batches.append((inputs.copy(), outputs.copy()))
            states.append(feeder.state_dict())
    assert states[3] == {"epoch": 1, "seed": 5, "delivered": 0, "samples": 11, "shuffle": True}
    resumed = started(ids, 3, workers=workers, processes=processes, **(options | {"seed": 0}))
    for number, state in enumerate(states[:-1]):
        # WHEN a feeder goes on from any batch, THEN the rest is the same, augmentation included
        resumed.load_state_dict(state)
        rest = rows(itertools.chain.from_iterable(resumed.generate_epochs(1 if number >= 3 else 2)))
        assert rest == rows(batches[number + 1 :])
    # AND also in batches of another size, to the sample
    other = started(ids, 4, **options)
    other.load_state_dict(states[1])
    assert rows(other) == rows(batches[2:4])


def test_augmentation(started):
    # GIVEN readers that take random numbers; WHEN they read two epochs in threads, and inline with another batch size
    options = {"read": feeding.augmented, "label": feeding.augmented_label}
    threads, inline = started(list(range(9)), 2, workers=3, **options), started(list(range(9)), 5, **options)
    first, second = map(rows, threads.generate_epochs(2))
    # THEN the numbers are the same for both sides of a sample, and do not depend on who reads
    assert all(on_input == on_output for _, on_input, on_output in first)
    assert [rows(epoch) for epoch in inline.generate_epochs(2)] == [first, second]
    # AND differ between samples, epochs and seeds
    third = rows(started(list(range(9)), 2, seed=1, **options))
    assert len({value for _, value, _ in first + second + third}) == 27


def test_state_of_what_was_delivered():
    # GIVEN workers that read ahead, and a loop that stops after two batches
    with feeder_of(list(range(30)), 4, workers=3) as feeder:
        for _ in itertools.islice(feeder, 2):
            pass
        # THEN the state is after those two
        assert feeder.state_dict()["delivered"] == 8
        # AND the next loop is a new epoch, not the rest
        assert len(rows(feeder)) == 30
        assert feeder.epoch == 1
        # AND `set_epoch` names the next one
        feeder.set_epoch(7)
        assert (feeder.epoch, len(rows(feeder))) == (7, 30)


def test_a_state_of_something_else():
    # GIVEN the state of a feeder; WHEN one with other samples or another order takes it, THEN it refuses
    state = feeder_of([1, 2, 3]).state_dict()
    with pytest.raises(ValueError, match="samples=3, and this feeder 4"):
        feeder_of([1, 2, 3, 4]).load_state_dict(state)
    with pytest.raises(ValueError, match="shuffle=False, and this feeder True"):
        feeder_of([1, 2, 3], shuffle=True).load_state_dict(state)


@EACH_READER
def test_a_reader_that_raises(started, tmp_path, workers, processes):
    # GIVEN a sample that cannot be read the first time
    ids = [str(tmp_path / str(number)) for number in range(10)]
    Path(ids[5]).touch()
    feeder = started(ids, 4, feeding.fails_once, feeding.path_label, workers=workers, processes=processes)
    epoch = iter(feeder)
    delivered = rows([next(epoch)])
    # WHEN its batch is asked for, THEN the error names the sample and says why
    with pytest.raises(memlab.SampleError, match="the disk was away") as caught:
        next(epoch)
    error = caught.value
    assert (error.sample, error.index, error.side) == (ids[5], 5, "input")
    assert isinstance(error.__cause__, OSError) and "in fails_once" in "".join(traceback.format_exception(error))
    assert feeder.state_dict()["delivered"] == 4
    # AND asked again, it is read again, and no sample is missing
    delivered += rows(epoch)
    assert [sample for sample, _, _ in delivered] == list(range(10))


def test_errors_of_many_samples(started):
    # GIVEN two bad samples in one batch, which different threads read
    def read(number):
        if number in (2, 5):
            raise KeyError(number)
        return feeding.read(number)

    feeder = started(list(range(8)), 8, read, workers=8, most_slots=2)
    # WHEN it is read, THEN the first one is named, however often it is asked for
    epoch = iter(feeder)
    for _ in range(3):
        with pytest.raises(memlab.SampleError) as caught:
            next(epoch)
        assert caught.value.sample == 2


def test_a_worker_that_dies(started, tmp_path):
    # GIVEN a sample that kills the process that reads it
    ids = [str(tmp_path / str(number)) for number in range(9)]
    Path(ids[4]).touch()
    feeder = started(ids, 3, feeding.dies_once, feeding.path_label, workers=2, processes=True)
    epoch = iter(feeder)
    delivered = rows([next(epoch)])
    # WHEN its batch is asked for, THEN the error names the samples that the process had
    with pytest.raises(RuntimeError, match=f"exit code 7 while it read .*{ids[4]}"):
        next(epoch)
    # AND another process reads them
    delivered += rows(epoch)
    assert [sample for sample, _, _ in delivered] == list(range(9))


@EACH_READER
def test_batches_that_are_kept(started, workers, processes):
    # GIVEN a feeder of two slots; WHEN a loop keeps all batches
    ids = list(range(40))
    feeder = started(ids, 4, workers=workers, processes=processes, most_slots=2)
    for _ in range(2):
        kept = list(feeder)
        # THEN no batch is overwritten
        assert [sample for sample, _, _ in rows(kept)] == ids
        # AND a part of one is enough to keep it
        parts = [torch.from_numpy(inputs)[1:, :1] for inputs, _ in kept]
        del kept
        assert [sample for sample, _, _ in rows(feeder)] == ids
        assert [part[0].item() for part in parts] == list(range(1, 40, 4))


def test_kept_batches_are_freed(started):
    # GIVEN a loop that keeps all batches of a worker process; WHEN it has dropped them, and read another epoch
    feeder = started(list(range(40)), 4, feeding.who_reads, workers=1, processes=True, most_slots=2)
    kept = list(feeder)
    worker = int(kept[0][0][0, 1])
    assert len(kept) == 10
    del kept
    rows(feeder)
    # THEN no process maps more batches than there are slots
    for pid in ("self", worker):
        assert 0 < Path(f"/proc/{pid}/maps").read_text().count("memfd:memlab-feeder") <= 2


def test_who_reads(started):
    # GIVEN two worker processes; WHEN two epochs are read, THEN the same two read all of it
    feeder = started(list(range(40)), 2, feeding.who_reads, workers=2, processes=True)
    pids = {pid for epoch in feeder.generate_epochs(2) for _, pid, _ in rows(epoch)}
    assert len(pids) == 2
    # AND they end when the feeder is closed, or dropped
    assert all(Path(f"/proc/{int(pid)}").exists() for pid in pids)
    feeder.close()
    assert not any(Path(f"/proc/{int(pid)}").exists() for pid in pids)


def test_a_feeder_that_is_dropped():
    # GIVEN threads that read ahead; WHEN nobody has the feeder any more
    before = set(threading.enumerate())
    feeder = feeder_of(list(range(40)), workers=3)
    inputs, _ = next(iter(feeder))
    assert set(threading.enumerate()) - before
    del feeder
    gc.collect()
    # THEN they end, and the batch that the loop had stays
    assert not set(threading.enumerate()) - before
    assert inputs[:, 0].tolist() == [0, 1, 2, 3]


def test_closing_while_a_reader_hangs(started):
    # GIVEN a worker process in a reader that never ends; WHEN the feeder is closed, THEN it does not wait
    feeder = started([1, 2], 1, feeding.endless, workers=1, processes=True)
    epoch = iter(feeder)
    feeder.close()
    with pytest.raises(RuntimeError, match="this epoch has ended"):
        next(epoch)


def test_the_epoch_before(started):
    # GIVEN an epoch; WHEN another one begins, THEN the first says that it has ended, instead of losing samples
    feeder = started(list(range(10)), 2, workers=2)
    first = iter(feeder)
    next(first)
    second = iter(feeder)
    with pytest.raises(RuntimeError, match="this epoch has ended"):
        next(first)
    assert len(rows(second)) == 10


@EACH_READER
def test_readers_are_called_anew(started, tmp_path, workers, processes):
    # GIVEN a file per sample; WHEN its contents change between epochs, THEN the second epoch has the new ones
    ids = [str(tmp_path / f"{number}.npy") for number in range(5)]
    feeder = started(ids, 2, feeding.load, feeding.no_label, workers=workers, processes=processes)
    for value in (1.0, 2.0):
        for path in ids:
            np.save(path, np.full(2, value))
        assert rows(feeder) == [(value, value, 0)] * 5


@pytest.mark.parametrize(
    "read, message",
    [
        (lambda number: [], "yields 0 variations; one_read_count is 1"),
        (lambda number: [np.zeros(2)] * 2, "yields more than one_read_count=1 variations"),
        (lambda number: [np.zeros(3)], r"has shape \(3,\); the Config says \(2,\)"),
        (lambda number: [np.zeros(2, complex)], "is complex128; the Config says float64"),
        (lambda number: 5, "gives int; must be a generator"),
    ],
)
def test_samples_that_are_wrong(started, read, message):
    # GIVEN a reader that yields something else than the Config says; THEN the error names sample and side, and both forms
    with pytest.raises(memlab.SampleError, match=f"input of sample 3 \\(number 0\\): .*{message}"):
        next(iter(started([3], read=read)))


def test_tensors(started):
    # GIVEN readers that yield tensors; THEN batches are tensors, of the Config's types
    feeder = started([1, 2], read=lambda number: [torch.full((2,), number)], label=lambda number: torch.tensor([number]))
    ((inputs, outputs),) = feeder
    assert torch.equal(inputs, torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=torch.float64))
    assert outputs.dtype == torch.float64 and outputs.tolist() == [1, 2]


def test_what_is_applied(started):
    # GIVEN functions for each side, of which one fails once, and one that makes the batch
    failures = iter([True, False, False])

    def on_input(batch):
        if next(failures):
            raise ArithmeticError
        return np.stack(list(batch)) + 1

    feeder = started(
        [1, 2, 3],
        2,
        apply_on_input_batch=on_input,
        apply_on_output_batch=lambda batch: -batch,
        make_batch=lambda x, y: {"x": x, "y": y},
    )
    epoch = iter(feeder)
    with pytest.raises(ArithmeticError):
        next(epoch)
    # THEN the batch that failed is not lost, and what they return is what the loop gets
    assert feeder.state_dict()["delivered"] == 0
    assert [(batch["x"][:, 0].tolist(), batch["y"].tolist()) for batch in epoch] == [([2, 3], [-1, -2]), ([4], [-3])]


@pytest.mark.parametrize(
    "ids",
    [["a", "ß", "\udcff"], [(1, 2), (3, 4)], np.array(["x", "yz"]), [1, "a", None], [2**70, 1], range(3), np.arange(3), []],
    ids=str,
)
def test_identities_of_all_kinds(started, ids):
    # GIVEN names with letters of any kind, tuples, arrays, numbers, mixtures
    seen = []

    def read(identity):
        seen.append(identity)
        return [np.zeros(2)]

    rows(started(ids, read=read, label=feeding.no_label))
    # THEN the readers get what is in the list, as Python's own types
    assert seen == list(ids) and not any(isinstance(one, np.generic) for one in seen)


def test_arguments():
    # GIVEN arguments that are wrong; THEN the error says what to give
    with pytest.raises(ValueError, match="input_list has 2 identities; the Config says total_sample_count=3"):
        memlab.Feeder(config(3, 1), [1, 2], [1, 2], feeding.read, feeding.label)
    with pytest.raises(ValueError, match="rank=2: must be from 0 to world_size - 1, which is 1"):
        feeder_of([1], rank=2, world_size=2)
    with pytest.raises(ValueError, match="convert on the device: give one"):
        feeder_of([1], convert_input=torch.float32)
    with pytest.raises(RuntimeError, match="PyTorch finds no CUDA device here"):
        feeder_of([1], device="cuda")
    with pytest.raises(TypeError, match="give functions of a module, or processes=False"):
        iter(feeder_of([1], read=lambda number: [], workers=1, processes=True))
