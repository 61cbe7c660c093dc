"""Batches that are larger than the GPU: what `memlab.accumulate` is made of."""
