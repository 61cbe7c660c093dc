"""The program that `memlab.inspect` records: `python -m memlab._inspection.child FILE BATCH [LENGTH]`."""

from __future__ import annotations

import sys

from memlab._inspection.weightless_pickle import load


def main() -> None:
    """Runs the training in a file of `memlab._inspection.weightless_pickle` with batches of this many rows, of that
    length."""
    _, path, rows, *length = sys.argv
    with open(path, "rb") as file:
        training = load(file)
    training.run(int(rows), *map(int, length))


if __name__ == "__main__":
    main()
