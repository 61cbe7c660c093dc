"""The reports of `memlab.MemReporter`: tensors, and what no Python object holds."""
