"""The program that `memlab.inspect` records: `python -m memlab._inspection.child FILE BATCH`."""

from __future__ import annotations

import sys

from memlab._inspection.structure import load


def main() -> None:
    """Runs the training in a file of `memlab._inspection.structure` with batches of so many rows."""
    _, path, rows = sys.argv
    with open(path, "rb") as file:
        training = load(file)
    training.run(int(rows))


if __name__ == "__main__":
    main()
