"""Memory of a training iteration: hooks and table."""
