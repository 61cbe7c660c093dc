"""What the notebook magics show: the GPU now, what a cell did, and that while it runs."""
