"""The parts of the pytest plugin that are imported only where a test's GPU memory is measured."""
