"""The displays of the notebook magics: the GPU now, a cell's memory, and a running cell."""
