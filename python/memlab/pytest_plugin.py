"""The pytest plugin: limits on the GPU memory of tests, and a table of the most expensive ones.

    @pytest.mark.gpu_memory("2GiB")   # the test fails if it needs more at its peak
    @pytest.mark.gpu_leak(0)          # the test fails if it leaves memory allocated

    pytest --memlab                   # a table of the most expensive tests at the end

Installed with the package; in a source tree: ``-p memlab.pytest_plugin``. It imports no other module before a test has one
of these markers, or ``--memlab`` is given.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from memlab._pytest.summary import Row

_MARKERS = ("gpu_memory", "gpu_leak")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tests: use 1 or more")
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memlab", "GPU memory of tests")
    group.addoption("--memlab", action="store_true", help="print the tests with the highest GPU memory")
    group.addoption("--memlab-most", metavar="N", type=_positive, default=5, help="number of tests that --memlab prints (5)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "gpu_memory(limit, device=None): fails the test if it needs more GPU memory than limit, such as '2GiB', at its "
        "peak, beyond the memory allocated before it. device: index of the GPU; None: each GPU.",
    )
    config.addinivalue_line(
        "markers",
        "gpu_leak(limit=0, device=None): fails the test if it leaves more GPU memory allocated than limit.",
    )
    config.pluginmanager.register(_Gathered(config), "memlab-gathered")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    measure_all = config.getoption("memlab")
    measured = [item for item in items if measure_all or any(mark.name in _MARKERS for mark in item.iter_markers())]
    if not measured:
        return
    from memlab._pytest.limits import limits_of
    from memlab._pytest.measuring import Measuring

    limits, mistakes = {}, {}
    for item in measured:
        try:
            limits[item] = limits_of(item)
        except pytest.UsageError as error:
            # In a worker of pytest-xdist it would end the session without its message. There, the test fails instead.
            if not hasattr(config, "workerinput"):
                raise
            mistakes[item] = str(error)
    config.pluginmanager.register(Measuring(config, limits, mistakes), "memlab-measuring")


class _Gathered:
    """The figures of all tests. Under pytest-xdist they arrive with the reports of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rows: list[tuple[str, Row]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row: Any = getattr(report, "memlab", None)
        if row is not None:
            self.rows.append((report.nodeid, row))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.rows:
            from memlab._pytest.summary import write_summary

            most = self.config.getoption("memlab_most") if self.config.getoption("memlab") else 0
            write_summary(terminalreporter, self.rows, most)
