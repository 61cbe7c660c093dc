"""Readers for the feeder's tests: module-level functions, which worker processes can import."""

import itertools
import os
import time
from pathlib import Path

import numpy as np
from waiting import wait_until


def twin(number, value):
    """An array of two numbers that identify the sample and the value."""
    return np.array([number, value], dtype=np.float64)


def read(number):
    return [twin(number, 0)]


def read_two(number):
    yield twin(number, 0)
    yield twin(number, 1)


def label(number):
    return [np.int64(number)]


def label_two(number):
    return [number, number]


def augmented(number, rng):
    yield twin(number, rng.random())


def augmented_label(number, rng):
    yield rng.random()


def who_reads(number):
    yield twin(number, os.getpid())


_READ = itertools.count()


def who_reads_beside_another(path):
    """From its process's third sample on, waits until another process has read one. (The first reader starts alone.)"""
    folder, number = Path(path).parent, int(Path(path).name)
    (folder / f"reader-{os.getpid()}").touch()
    if next(_READ) >= 2:
        wait_until(lambda: len(list(folder.glob("reader-*"))) > 1)
    yield twin(number, os.getpid())


def fails_once(path):
    """A reader that fails for a sample while a file with the sample's name exists."""
    if Path(path).exists():
        Path(path).unlink()
        raise OSError("the disk was away")
    yield twin(int(Path(path).name), 0)


def dies_once(path):
    """A reader that kills its process for a sample while a file with the sample's name exists."""
    if Path(path).exists():
        Path(path).unlink()
        os._exit(7)
    yield twin(int(Path(path).name), 0)


def path_label(path):
    return [int(Path(path).name)]


def load(path):
    yield np.load(path)


def no_label(identity):
    return [0]


def endless(path):
    """Creates a file when it begins, and never ends."""
    Path(path).touch()
    while True:
        time.sleep(0.1)
    yield
