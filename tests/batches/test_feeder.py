"""`memlab.Feeder`: each sample once per epoch, from any position, with any kind of reader."""

import gc
import itertools
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import readers
import torch
from conftest import ROOT
from feeders import EACH_READER, feeder_of, rows
from waiting import HANG_SECONDS


def test_each_sample_once_in_a_thousand_feeders():
    # GIVEN feeders with random numbers of samples, batches, limits, workers and ranks
    chance = random.Random(13)
    for _ in range(1000):
        samples, one_read_count = chance.randrange(60), chance.choice((1, 1, 2))
        batch = one_read_count * chance.randint(1, 20)
        world_size = chance.choice((1, 1, 1, 2, 3))
        options = {
            "read": (readers.read, readers.read_two)[one_read_count - 1],
            "label": (readers.label, readers.label_two)[one_read_count - 1],
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
                # WHEN two epochs are read, THEN each batch except the last is full
                for number, epoch in enumerate(feeder.generate_epochs(2)):
                    batches = [(inputs.copy(), outputs.copy()) for inputs, outputs in epoch]
                    assert len(batches) == len(feeder)
                    assert all(len(inputs) == feeder.batch_size for inputs, _ in batches[:-1])
                    epochs.append((number, rows(batches)))
        for number in (0, 1):
            share = [one for which, each in epochs if which == number for one in each]
            # AND each variation of each sample appears once, with its own output
            assert all(sample == label for sample, _, label in share)
            expected = set(itertools.product(map(float, ids), range(one_read_count)))
            assert {(sample, variation) for sample, variation, _ in share} == expected
            # AND nothing appears twice, except to make the ranks' shares equal
            assert len(share) == -(-samples // world_size) * world_size * one_read_count


@EACH_READER
def test_order(workers, processes):
    # GIVEN the same samples in feeders with workers and without
    ids = list(range(50))
    feeder = feeder_of(ids, 7, workers=workers, processes=processes)
    shuffled = feeder_of(ids, 7, workers=workers, processes=processes, shuffle=True, seed=3)
    # THEN the order is that of the lists
    assert [sample for sample, _, _ in rows(feeder)] == ids
    # AND a shuffled order depends on the seed and the epoch only
    first, second = ([sample for sample, _, _ in rows(epoch)] for epoch in shuffled.generate_epochs(2))
    assert sorted(first) == sorted(second) == ids and first != second != ids
    alone = feeder_of(ids, 20, shuffle=True, seed=3)
    assert [[sample for sample, _, _ in rows(epoch)] for epoch in alone.generate_epochs(2)] == [first, second]
    assert [sample for sample, _, _ in rows(feeder_of(ids, 20, shuffle=True, seed=4))] != first


@EACH_READER
def test_resume_at_every_point(workers, processes):
    # GIVEN an epoch and the next, shuffled and augmented
    ids = list(range(11))
    options = {"read": readers.augmented, "label": readers.augmented_label, "shuffle": True, "seed": 5}
    feeder = feeder_of(ids, 3, workers=workers, processes=processes, **options)
    states, batches = [], []
    for epoch in feeder.generate_epochs(2):
        for inputs, outputs in epoch:
            batches.append((inputs.copy(), outputs.copy()))
            states.append(feeder.state_dict())
    assert states[3] == {"epoch": 1, "seed": 5, "delivered": 0, "samples": 11, "shuffle": True}
    resumed = feeder_of(ids, 3, workers=workers, processes=processes, **(options | {"seed": 0}))
    for number, state in enumerate(states[:-1]):
        # WHEN a feeder resumes after any batch, THEN the rest is the same, including augmentation
        resumed.load_state_dict(state)
        rest = rows(itertools.chain.from_iterable(resumed.generate_epochs(1 if number >= 3 else 2)))
        assert rest == rows(batches[number + 1 :])
    # AND with another batch size it resumes at the exact sample
    other = feeder_of(ids, 4, **options)
    other.load_state_dict(states[1])
    assert rows(other) == rows(batches[2:4])


def test_augmentation():
    # GIVEN readers that draw random numbers; WHEN they read two epochs in threads, and inline with another batch size
    options = {"read": readers.augmented, "label": readers.augmented_label}
    threads, inline = feeder_of(list(range(9)), 2, workers=3, **options), feeder_of(list(range(9)), 5, **options)
    first, second = map(rows, threads.generate_epochs(2))
    # THEN both sides of a sample draw the same numbers, independent of the reader
    assert all(on_input == on_output for _, on_input, on_output in first)
    assert [rows(epoch) for epoch in inline.generate_epochs(2)] == [first, second]
    # AND numbers differ between samples, epochs and seeds
    third = rows(feeder_of(list(range(9)), 2, seed=1, **options))
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
        # AND `set_epoch` sets the number of the next one
        feeder.set_epoch(7)
        assert (feeder.epoch, len(rows(feeder))) == (7, 30)


@EACH_READER
def test_batches_that_are_kept(workers, processes):
    # GIVEN a feeder of two slots; WHEN a loop keeps all batches
    ids = list(range(40))
    feeder = feeder_of(ids, 4, workers=workers, processes=processes, most_slots=2)
    for _ in range(2):
        kept = list(feeder)
        # THEN no batch is overwritten
        assert [sample for sample, _, _ in rows(kept)] == ids
        # AND a view of a batch keeps it alive
        parts = [torch.from_numpy(inputs)[1:, :1] for inputs, _ in kept]
        del kept
        assert [sample for sample, _, _ in rows(feeder)] == ids
        assert [part[0].item() for part in parts] == list(range(1, 40, 4))


def batches_mapped(pid):
    """The batch memory that a process maps, by inode."""
    return {line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:memlab-feeder" in line}


def test_kept_batches_are_freed():
    # GIVEN a loop that keeps all batches of a worker process; WHEN it has dropped them, and read another epoch
    of_others = batches_mapped("self")
    feeder = feeder_of(list(range(40)), 4, readers.who_reads, workers=1, processes=True, most_slots=2)
    kept = list(feeder)
    worker = int(kept[0][0][0, 1])
    assert len(kept) == 10
    del kept
    rows(feeder)
    # THEN no process maps more batches than the feeder has slots
    for pid in ("self", worker):
        assert 0 < len(batches_mapped(pid) - of_others) <= 2


def test_the_same_worker_processes_read_all_epochs(tmp_path):
    # GIVEN two worker processes; WHEN two epochs are read, THEN the same two read all of it
    ids = [str(tmp_path / str(number)) for number in range(40)]
    feeder = feeder_of(ids, 2, readers.who_reads_beside_another, readers.path_label, workers=2, processes=True)
    pids = {pid for epoch in feeder.generate_epochs(2) for _, pid, _ in rows(epoch)}
    assert len(pids) == 2
    # AND they end when the feeder is closed or dropped
    assert all(Path(f"/proc/{int(pid)}").exists() for pid in pids)
    feeder.close()
    assert not any(Path(f"/proc/{int(pid)}").exists() for pid in pids)


def test_a_feeder_that_is_dropped():
    # GIVEN threads that read ahead; WHEN the last reference to the feeder is dropped
    before = set(threading.enumerate())
    feeder = feeder_of(list(range(40)), workers=3)
    inputs, _ = next(iter(feeder))
    threads = set(threading.enumerate()) - before
    assert threads
    del feeder
    gc.collect()
    # THEN they end, and the loop's batch stays valid
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
    assert inputs[:, 0].tolist() == [0, 1, 2, 3]


@EACH_READER
def test_readers_are_called_anew(tmp_path, workers, processes):
    # GIVEN a file per sample; WHEN its contents change between epochs, THEN the second epoch has the new ones
    ids = [str(tmp_path / f"{number}.npy") for number in range(5)]
    feeder = feeder_of(ids, 2, readers.load, readers.no_label, workers=workers, processes=processes)
    for value in (1.0, 2.0):
        for path in ids:
            np.save(path, np.full(2, value))
        assert rows(feeder) == [(value, value, 0)] * 5


@pytest.mark.parametrize("make, stack", [(torch.ones, torch.stack), (np.ones, np.stack)], ids=["tensors", "arrays"])
def test_batches_are_stacked_as_documented(make, stack):
    # GIVEN readers that yield tensors or arrays, and a function that joins the samples of a batch
    with feeder_of([1, 2], read=lambda number: make(2), apply_on_input_batch=lambda samples: stack(list(samples))) as feeder:
        # THEN the function receives the readers' values, as docs/feeding.md documents
        ((inputs, _),) = feeder
    assert type(inputs) is type(make(2)) and inputs.shape == (2, 2)
    assert f"{stack.__module__.partition('.')[0]}.stack(list(samples))" in (ROOT / "docs" / "feeding.md").read_text()


def test_tensors():
    # GIVEN readers that yield tensors; THEN batches are tensors of the Config's types
    feeder = feeder_of([1, 2], read=lambda number: [torch.full((2,), number)], label=lambda number: torch.tensor([number]))
    ((inputs, outputs),) = feeder
    assert torch.equal(inputs, torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=torch.float64))
    assert outputs.dtype == torch.float64 and outputs.tolist() == [1, 2]


@pytest.mark.parametrize(
    "ids",
    [["a", "ß", "\udcff"], [(1, 2), (3, 4)], np.array(["x", "yz"]), [1, "a", None], [2**70, 1], range(3), np.arange(3), []],
    ids=str,
)
def test_identities_of_all_kinds(ids):
    # GIVEN identities of all kinds: names in any script, tuples, arrays, numbers, mixtures
    seen = []

    def read(identity):
        seen.append(identity)
        return [np.zeros(2)]

    rows(feeder_of(ids, read=read, label=readers.no_label))
    # THEN the readers receive the list's items as Python's built-in types
    assert seen == list(ids) and not any(isinstance(one, np.generic) for one in seen)
