"""The reports of `memlab.MemReporter`: tensors, and memory that no Python object holds."""
