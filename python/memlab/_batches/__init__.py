"""Batches larger than the GPU: the implementation of `memlab.accumulate`. A piece is a micro-batch of such a batch."""
