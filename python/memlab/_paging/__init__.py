"""Implementation of `memlab.page`, `memlab.chunk` and `memlab.load`.

Not public. `.importlinter` defines the layers of these files.
"""
