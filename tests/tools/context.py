"""Waiting for NVML, in programs and cells of tests."""

#: Defines `wait_for_context`. A thread of memlab's asks NVML about each card in use, a few times a second: until it has, the
#: figures of a whole card lack the context.
WAITING = """
def wait_for_context(*cards):
    import memlab, time
    for card in cards or (0,):
        while not any(row.category == "context" and row.live for row in memlab.tracker.by_category(card)):
            time.sleep(0.01)
"""
