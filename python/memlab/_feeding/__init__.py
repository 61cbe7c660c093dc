"""The parts of `memlab.Config` and `memlab.Feeder`."""
