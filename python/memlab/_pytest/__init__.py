"""The parts of the pytest plugin that are imported only if a test's GPU memory is measured."""
