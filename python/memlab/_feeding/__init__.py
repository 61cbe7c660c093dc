"""The implementation of `memlab.Config` and `memlab.Feeder`."""
