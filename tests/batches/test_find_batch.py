"""`memlab.find_batch`: the largest batch that runs, found by running it."""

import json

import memlab as package
import pytest
import torch
from conftest import ROOT


def runs_up_to(largest, tried):
    def run(batch):
        tried.append(batch)
        if batch > largest:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return run


@pytest.mark.parametrize("largest", [1, 2, 7, 64, 100, 1000])
@pytest.mark.parametrize("start", [None, 1, 5, 63, 64, 65, 3000])
def test_the_largest_is_found_from_any_start(largest, start):
    # GIVEN a program that runs up to a batch size; WHEN the search starts anywhere
    tried = []
    found = package.find_batch(runs_up_to(largest, tried), start)
    # THEN it finds that size, and tries no size twice
    assert found == largest
    assert len(tried) == len(set(tried)) <= 26
    if start == largest:
        assert tried == [largest, largest + 1]


def test_bounds():
    # GIVEN an upper bound; THEN nothing larger is tried
    tried = []
    assert package.find_batch(runs_up_to(100, tried), start=500, most=48) == 48 and max(tried) == 48
    # AND if no batch runs, find_batch raises an error
    with pytest.raises(package.NotEnoughGPURam, match="not even a batch of 1"):
        package.find_batch(runs_up_to(0, []), start=6)
    with pytest.raises(ValueError, match="start=0"):
        package.find_batch(runs_up_to(8, []), start=0)


def test_other_errors_are_not_swallowed():
    # GIVEN an error with the text of an out-of-memory error, and one with an out-of-memory error as its cause
    def text(batch):
        raise RuntimeError("CUDA out of memory")

    def caused(batch):
        try:
            runs_up_to(5, [])(batch)
        except torch.OutOfMemoryError as error:
            raise RuntimeError("the step failed") from error

    # THEN the former is raised, and the latter counts as a batch that is too large
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        package.find_batch(text)
    assert package.find_batch(caused) == 5


def test_failed_tries_leave_nothing(memlab):
    # GIVEN a GPU of 2 GiB, and a program that keeps its errors and has its tensors in a cycle
    program = """if True:
        import json, memlab, torch
        errors = []
        def run(batch):
            held = [torch.empty(batch << 26, dtype=torch.int8, device="cuda")]
            held.append(held)
            try:
                torch.empty(batch << 26, dtype=torch.int8, device="cuda")
            except torch.OutOfMemoryError as error:
                errors.append(error)
                raise
        found = memlab.find_batch(run, start=30)
        print(json.dumps([found, len(errors), torch.cuda.memory_reserved()]))
    """
    run = memlab.python("-c", program, preload=False, memory="2GiB", env={"PYTHONPATH": ROOT / "python"})
    # THEN each try has the whole GPU: at two tensors of 64 MiB per row, at most 15 rows fit beside the context
    assert run.code == 0, run.errors
    found, failed, reserved = json.loads(run.output)
    assert 8 <= found <= 15 and failed > 0 and reserved == 0
