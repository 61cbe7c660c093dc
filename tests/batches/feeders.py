"""Small feeders for the tests, whose samples contain their own numbers."""

import memlab
import pytest
import readers

# Readers: the loop itself, threads, worker processes.
READERS = {"inline": (0, False), "threads": (3, False), "processes": (2, True)}
EACH_READER = pytest.mark.parametrize("workers, processes", READERS.values(), ids=READERS)


def config(samples, batch_size, one_read_count=1, limit="1MiB", workers=0):
    return memlab.Config(
        limit, None, samples, (2,), (), None, one_read_count=one_read_count, batch_size=batch_size, workers=workers
    )


def feeder_of(
    ids, batch_size=4, read=readers.read, label=readers.label, workers=0, one_read_count=1, limit="1MiB", **options
):
    return memlab.Feeder(config(len(ids), batch_size, one_read_count, limit, workers), ids, ids, read, label, **options)


def rows(epoch):
    """All rows of an epoch as (sample, value, label)."""
    return [(*x.tolist(), y.item()) for inputs, outputs in epoch for x, y in zip(inputs, outputs, strict=True)]
