"""The implementation of `memlab.inspect`."""
