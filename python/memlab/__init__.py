"""memlab: where a PyTorch program's GPU memory went, and models bigger than the GPU."""
