"""The reports of `memlab.MemReporter`: tensors, other memory, and the objects that keep it alive."""
