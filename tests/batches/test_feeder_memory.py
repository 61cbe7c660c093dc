"""Memory of a feeder: never above its limit, with any kind of reader."""

import queue
import threading
from pathlib import Path

import memlab
import numpy as np
import pytest
from memlab._feeding.budget import HostBudget, ReadingRoom, reader_bytes
from memlab._feeding.sample_form import SampleForm
from tool_runs import run_program
from waiting import HANG_SECONDS

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "feeder_memory.py"


@pytest.mark.parametrize(
    "workers, how, limit",
    [
        (0, "threads", 16 << 20),
        (2, "threads", 16 << 20),
        (8, "threads", 16 << 20),  # Not all of them start.
        (8, "threads", 32 << 20),
        (2, "processes", 16 << 20),
        (8, "processes", 16 << 20),
        (8, "processes", 32 << 20),
    ],
)
def test_host_memory_of_all_processes(memlab, workers, how, limit):
    # GIVEN 192 samples of 1 MiB, in batches of 4; WHEN two epochs are fed within a limit
    result = run_program(memlab, PROGRAM, "feeder", limit, 4, workers, how, preload=False, fresh=True)
    # THEN all processes of the feeder together never grow by more
    assert result["rows"] == 2 * 192
    assert (8 << 20) < result["grown_bytes"] <= limit


def test_host_memory_on_the_way_to_a_gpu(memlab):
    # GIVEN the same, copied to the GPU from pinned slots; THEN host memory stays within the limit too
    result = run_program(memlab, PROGRAM, "feeder", 24 << 20, 4, 2, "threads", "cuda", preload=False, fresh=True)
    assert result["rows"] == 2 * 192
    assert result["grown_bytes"] <= (24 << 20)
    # AND the card holds the loop's batch, the waiting ones, and one in transfer
    assert result["on_card_bytes"] < 6 * (4 << 20)


def test_planned_batches_fit():
    # GIVEN samples and limits of many sizes
    for rows, sample, one_read_count, workers in [(1, 1, 1, 0), (7, 999, 1, 3), (30, 5000, 3, 8), (64, 100_000, 2, 64)]:
        smallest = HostBudget(0, *forms(sample), one_read_count).needed(one_read_count)
        for limit in range(smallest, smallest + (rows * sample * 20), sample * 5 + 777):
            budget = HostBudget(limit, *forms(sample), one_read_count)
            # THEN slots and readers together stay below the limit, also at the largest batch size
            for batch in {budget.largest_batch, min(rows, budget.largest_batch) // one_read_count * one_read_count}:
                if batch:
                    held = budget.slots(batch, workers, 99) * budget.layout(batch).nbytes
                    assert held + budget.readers(batch, workers) * budget.read_bytes <= limit
            # AND the next larger batch exceeds it
            assert budget.needed(budget.largest_batch + one_read_count) > limit


def forms(sample):
    return SampleForm((sample,), "uint8"), SampleForm((), "int64")


class ObservedCondition(threading.Condition):
    """Puts an entry into `news` when a thread begins to wait."""

    def __init__(self, news):
        super().__init__()
        self.news = news

    def wait(self, timeout=None):
        self.news.put("waits")
        return super().wait(timeout)


def test_readers_wait_for_room():
    # GIVEN room to read two samples at a time
    room, news = ReadingRoom(5 * reader_bytes(1000) // 2), queue.SimpleQueue()
    room._condition = ObservedCondition(news)

    def asks():
        """Starts another reader that asks for room. Returns its bytes, or "waits"."""
        threading.Thread(target=lambda: news.put(room.enter()), daemon=True).start()
        return news.get(timeout=HANG_SECONDS)

    def let_in():
        """Bytes that the waiting reader received."""
        return news.get(timeout=HANG_SECONDS)

    # WHEN two readers ask, THEN the first reads alone, since the size of a sample is still unknown
    assert asks() == room.nbytes
    assert asks() == "waits"
    # WHEN it leaves, THEN the second enters, and a third beside it
    room.leave(room.nbytes, 1000)
    assert let_in() == asks() == reader_bytes(1000)
    # AND whenever one of the two leaves, the next one enters
    for _ in range(20):
        assert asks() == "waits"
        room.leave(reader_bytes(1000), 1000)
        assert let_in() == reader_bytes(1000)


def test_a_sample_larger_than_configured():
    # GIVEN a reader that yields float64, four times the bytes that the Config expects
    def feeder_of(limit):
        config = memlab.Config(limit, None, 3, (100_000,), (), None, "float16", "int64", batch_size=1)
        return memlab.Feeder(config, range(3), range(3), lambda number: [np.zeros(100_000)], lambda number: [number])

    # WHEN the limit leaves no room for it, THEN the error names a sufficient limit
    with pytest.raises(memlab.NotEnoughCPURam, match=r"a sample takes 781 KiB when it is read, .* at least 1.09 MiB more"):
        next(iter(feeder_of("900KiB")))
    assert len(list(feeder_of("2100KiB"))) == 3
