"""Activations off the GPU: what `memlab.offload_activations` is made of."""
