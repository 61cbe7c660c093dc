"""Code shared by `memlab.log` and the callbacks of trainers: figures of an interval, loggers, the HTML report."""
