"""The tensors of the process: which there are, their memory, their names."""
