"""What `memlab.inspect` is made of."""
