"""What the tools share. Knows nothing of any one of them."""
