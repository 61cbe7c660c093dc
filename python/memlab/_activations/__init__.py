"""Activations off the GPU: the implementation of `memlab.offload_activations`."""
