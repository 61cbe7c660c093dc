"""What `memlab.log` and the callbacks of trainers share: figures of an interval, loggers, the report as a page."""
