"""`memlab.Config`: the batch size that fits, and the error when none does."""

import memlab
import numpy as np
import pytest
import torch


class PerRow:
    """An easily checked plan: a fixed part plus a constant for each row."""

    def __init__(self, fixed, per_row):
        self.fixed, self.per_row = fixed, per_row
        self.asked = []

    def largest_batch(self, card_bytes, *, allocator=None):
        self.asked.append((card_bytes, allocator))
        nbytes = {"h100": 80 << 30}.get(card_bytes, card_bytes)
        return max((nbytes - self.fixed) // self.per_row, 0)


def config(cpu="64MiB", gpu="1GiB", samples=1000, shape=(3, 64, 64), **options):
    options = {"input_dtype": np.float32, "output_dtype": np.int64, "planner": PerRow(100 << 20, 10 << 20)} | options
    return memlab.Config(cpu, gpu, samples, shape, (), None, **options)


def test_sizes():
    # GIVEN sizes in the seed's notation; THEN they are bytes
    assert (memlab.KiB(1), memlab.MiB(2.5), memlab.GiB(1.5)) == (1024, 2621440, 1610612736)
    assert all(isinstance(unit(0.1), int) for unit in (memlab.KiB, memlab.MiB, memlab.GiB))
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be 0 or more"):
            memlab.GiB(wrong)


def test_batch_size():
    # GIVEN a plan with room for 92 rows; THEN the batch size is the largest multiple of one_read_count up to 92
    assert config().batch_size == 92
    assert config(one_read_count=5).batch_size == 90
    # AND the preferred size is an upper bound
    assert config(preferred_batch_size=16).batch_size == 16
    assert config(preferred_batch_size=16, one_read_count=3).batch_size == 15
    assert config(preferred_batch_size=1000).batch_size == 92
    # AND host memory is a bound too: two batches, and a sample during its read
    small = config(cpu="1MiB")
    row, sample = 3 * 64 * 64 * 4 + 8, 3 * 64 * 64 * 4
    assert small.batch_size == 8
    assert 2 * 8 * row + 2 * sample + (64 << 10) <= 1 << 20 < 2 * 9 * row + 2 * sample + (64 << 10)
    assert [one.limited_by for one in (config(), config(preferred_batch_size=16), small)] == [
        "gpu_memory_limit",
        "preferred_batch_size",
        "cpu_memory_limit",
    ]
    # AND for a smaller batch, accumulation_steps is the number that makes up the preferred one
    assert config(preferred_batch_size=360).accumulation_steps == 4
    assert config().accumulation_steps == config(preferred_batch_size=16).accumulation_steps == 1


def test_the_plan_receives_card_limit_and_allocator():
    # GIVEN a card instead of a limit, and allocator settings; THEN the plan receives both
    planner = PerRow(0, 1 << 30)
    assert config(gpu=None, card="h100", allocator="expandable_segments:True", planner=planner).batch_size <= 80
    assert planner.asked == [("h100", "expandable_segments:True")]
    # AND it receives a byte count in any notation
    planner = PerRow(0, 1 << 20)
    for limit in (memlab.GiB(1.5), "1.5GiB", 1.5 * 2**30):
        config(gpu=limit, planner=planner)
    assert {card for card, _ in planner.asked} == {3 << 29}


def test_nothing_fits_on_the_gpu():
    # GIVEN a GPU memory limit with room for two rows, but not for four
    with pytest.raises(memlab.NotEnoughGPURam) as caught:
        config(gpu="120MiB", one_read_count=4)
    # THEN the error names the batch size that fits, and the limit that suffices
    assert str(caught.value) == (
        "a batch of 4 (one_read_count) does not fit into 120 MiB: 140 MiB would be enough; "
        "with one_read_count=2 120 MiB would do"
    )
    # AND likewise if not even the parameters fit
    with pytest.raises(memlab.NotEnoughGPURam, match=r"does not fit into 50\.0 MiB: 110 MiB would be enough$"):
        config(gpu="50MiB")


def test_nothing_fits_in_host_memory():
    # GIVEN a limit at which the seed divided by zero; THEN the error names a sufficient one
    with pytest.raises(memlab.NotEnoughCPURam, match="feeding batches of 2 takes 456 KiB") as caught:
        config(cpu="64KiB", one_read_count=2)
    assert isinstance(caught.value, MemoryError)
    # AND that one suffices
    assert config(cpu="456KiB", one_read_count=2).batch_size == 2


def test_counts():
    # GIVEN a number of samples that the batch size does not divide; THEN the last batch counts too
    assert config(samples=10, preferred_batch_size=4).batch_count == 3
    assert config(samples=10, preferred_batch_size=4, one_read_count=2).batch_count == 5
    # AND fewer samples than a batch, or none, are no error
    assert config(samples=3, preferred_batch_size=8).batch_count == 1
    assert config(samples=0).batch_count == 0
    # AND host memory counts the types of both inputs and outputs
    one = memlab.Config("1MiB", None, 1, (64,), (64,), None, np.uint8, np.float64, batch_size=1)
    assert one.allowed_sample_count == ((1 << 20) - 2 * 64 * 8 - (64 << 10)) // (64 + 512)


def test_types():
    # GIVEN types of NumPy and PyTorch, as types and as names
    for dtype, expected in ((torch.uint8, np.uint8), ("float16", np.float16), (float, np.float64), (torch.bool, np.bool_)):
        assert config(input_dtype=dtype).inputs.dtype == expected
    # THEN the error for a type that NumPy lacks suggests a fix
    with pytest.raises(TypeError, match=r"convert_input=torch\.bfloat16, which converts on the device"):
        config(input_dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="must be a type of fixed size"):
        config(input_dtype=object)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"cpu": "2G"}, ValueError, "2G"),
        ({"cpu": None}, TypeError, "cpu_memory_limit=None: must be a number of bytes"),
        ({"gpu": -1}, ValueError, "gpu_memory_limit=-1: must be 0 or more"),
        ({"gpu": None}, ValueError, "give gpu_memory_limit or card"),
        ({"samples": 1.5}, TypeError, "total_sample_count=1.5: must be an int"),
        ({"one_read_count": 0}, ValueError, "one_read_count=0: must be 1 or more"),
        ({"workers": -1}, ValueError, "workers=-1: must be 0 or more"),
        ({"preferred_batch_size": 2, "one_read_count": 3}, ValueError, "preferred_batch_size=2 is below one_read_count=3"),
        ({"shape": (3, -1)}, ValueError, "sizes must be 0 or more"),
    ],
)
def test_arguments(options, error, message):
    # GIVEN an invalid argument; THEN the error names it and the valid values
    with pytest.raises(error, match=message):
        config(**options)
