"""The tensors of the process: finding them, their memory, their names."""
