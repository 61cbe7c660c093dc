"""What an iteration of a training takes: hooks and table."""
