"""How `memlab.page`, `memlab.chunk` and `memlab.load` work. Not public. `.importlinter` draws the layers of these files."""
