"""`memlab.Feeder` on failures: the error names the cause, and no sample is lost."""

import traceback
from pathlib import Path

import memlab
import numpy as np
import pytest
import readers
import torch
from feeders import EACH_READER, config, feeder_of, rows
from waiting import wait_until


def test_a_state_of_something_else():
    # GIVEN the state of a feeder; WHEN one with other samples or another order loads it, THEN it refuses
    state = feeder_of([1, 2, 3]).state_dict()
    with pytest.raises(ValueError, match="samples=3, and this feeder 4"):
        feeder_of([1, 2, 3, 4]).load_state_dict(state)
    with pytest.raises(ValueError, match="shuffle=False, and this feeder True"):
        feeder_of([1, 2, 3], shuffle=True).load_state_dict(state)


@EACH_READER
def test_a_reader_that_raises(tmp_path, workers, processes):
    # GIVEN a sample whose first read fails
    ids = [str(tmp_path / str(number)) for number in range(10)]
    Path(ids[5]).touch()
    feeder = feeder_of(ids, 4, readers.fails_once, readers.path_label, workers=workers, processes=processes)
    epoch = iter(feeder)
    delivered = rows([next(epoch)])
    # WHEN the loop asks for its batch, THEN the error names the sample and the cause
    with pytest.raises(memlab.SampleError, match="the disk was away") as caught:
        next(epoch)
    error = caught.value
    assert (error.sample, error.index, error.side) == (ids[5], 5, "input")
    assert isinstance(error.__cause__, OSError) and "in fails_once" in "".join(traceback.format_exception(error))
    assert feeder.state_dict()["delivered"] == 4
    # AND the next request reads it again, and no sample is missing
    delivered += rows(epoch)
    assert [sample for sample, _, _ in delivered] == list(range(10))


def test_errors_of_many_samples():
    # GIVEN two bad samples in one batch, read by different threads
    def read(number):
        if number in (2, 5):
            raise KeyError(number)
        return readers.read(number)

    feeder = feeder_of(list(range(8)), 8, read, workers=8, most_slots=2)
    # WHEN the loop asks for the batch, THEN each error names the first one
    epoch = iter(feeder)
    for _ in range(3):
        with pytest.raises(memlab.SampleError) as caught:
            next(epoch)
        assert caught.value.sample == 2


def test_a_worker_that_dies(tmp_path):
    # GIVEN a sample that kills the process that reads it
    ids = [str(tmp_path / str(number)) for number in range(9)]
    Path(ids[4]).touch()
    feeder = feeder_of(ids, 3, readers.dies_once, readers.path_label, workers=2, processes=True)
    epoch = iter(feeder)
    delivered = rows([next(epoch)])
    # WHEN the loop asks for its batch, THEN the error names the samples of that process
    with pytest.raises(RuntimeError, match=f"exit code 7 while it read .*{ids[4]}"):
        next(epoch)
    # AND another process reads them
    delivered += rows(epoch)
    assert [sample for sample, _, _ in delivered] == list(range(9))


def test_closing_while_a_reader_hangs(tmp_path):
    # GIVEN a worker process in a reader that never ends
    ids = [str(tmp_path / name) for name in "ab"]
    feeder = feeder_of(ids, 1, readers.endless, workers=1, processes=True)
    epoch = iter(feeder)
    wait_until(Path(ids[0]).exists)
    # WHEN the feeder is closed, THEN it does not wait
    feeder.close()
    with pytest.raises(RuntimeError, match="this epoch has ended"):
        next(epoch)


def test_the_epoch_before():
    # GIVEN an epoch; WHEN another one begins, THEN the first raises an error instead of losing samples
    feeder = feeder_of(list(range(10)), 2, workers=2)
    first = iter(feeder)
    next(first)
    second = iter(feeder)
    with pytest.raises(RuntimeError, match="this epoch has ended"):
        next(first)
    assert len(rows(second)) == 10


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
def test_samples_that_are_wrong(read, message):
    # GIVEN a reader whose values do not match the Config; THEN the error names the sample, the side, and both forms
    with pytest.raises(memlab.SampleError, match=f"input of sample 3 \\(number 0\\): .*{message}"):
        next(iter(feeder_of([3], read=read)))


def test_functions_applied_to_batches():
    # GIVEN a function for each side, one of which fails once, and a function that builds the batch
    failures = iter([True, False, False])

    def on_input(batch):
        if next(failures):
            raise ArithmeticError
        return np.stack(list(batch)) + 1

    feeder = feeder_of(
        [1, 2, 3],
        2,
        apply_on_input_batch=on_input,
        apply_on_output_batch=lambda batch: -batch,
        make_batch=lambda x, y: {"x": x, "y": y},
    )
    epoch = iter(feeder)
    with pytest.raises(ArithmeticError):
        next(epoch)
    # THEN the failed batch is not lost, and the loop receives the functions' results
    assert feeder.state_dict()["delivered"] == 0
    assert [(batch["x"][:, 0].tolist(), batch["y"].tolist()) for batch in epoch] == [([2, 3], [-1, -2]), ([4], [-3])]


def test_arguments():
    # GIVEN invalid arguments; THEN the error names valid ones
    with pytest.raises(ValueError, match="input_list has 2 identities; the Config says total_sample_count=3"):
        memlab.Feeder(config(3, 1), [1, 2], [1, 2], readers.read, readers.label)
    with pytest.raises(ValueError, match="rank=2: must be from 0 to world_size - 1, which is 1"):
        feeder_of([1], rank=2, world_size=2)
    with pytest.raises(ValueError, match="convert on the device: give one"):
        feeder_of([1], convert_input=torch.float32)
    with pytest.raises(RuntimeError, match="PyTorch finds no CUDA device here"):
        feeder_of([1], device="cuda")
    with pytest.raises(TypeError, match="give functions of a module, or processes=False"):
        iter(feeder_of([1], read=lambda number: [], workers=1, processes=True))
