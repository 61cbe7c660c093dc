"""Measures tests, and fails those that exceed their limits.

The measurement of a test begins before the first fixture that is created only for this test. It ends when the last such
fixture is torn down. Fixtures of wider scope (class, module, package, session) are created before, and torn down later.
"""

from __future__ import annotations

import unittest
from collections.abc import Generator
from typing import Any

import pytest

from memlab._pytest.limits import Limits
from memlab._pytest.summary import Row, over_limit
from memlab._pytest.window import Window

_ROW: pytest.StashKey[Row] = pytest.StashKey()


class Measuring:
    """The hooks of a session with measured tests."""

    def __init__(self, config: pytest.Config, limits: dict[pytest.Item, Limits], mistakes: dict[pytest.Item, str]) -> None:
        self.config = config
        self.limits = limits
        self.mistakes = mistakes  # Errors in markers.
        self.item: pytest.Item | None = None  # The current test, if it is measured.
        self.window: Window | None = None  # Open from the test's first fixture on.
        self.own_fixtures: list[str] = []  # Fixtures created only for this test.
        self.passed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.item = item if item in self.limits else None
        self.window, self.own_fixtures, self.passed = None, [], False
        if item in self.mistakes:
            pytest.fail(self.mistakes[item], pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        if self.item is None:
            return (yield)
        if fixturedef.scope == "function":
            self.own_fixtures.append(fixturedef.argname)
            self._open(self.item)
            return (yield)
        # A fixture of wider scope, created while the test runs.
        before = self.window.allocated() if self.window else []
        try:
            return (yield)
        finally:
            if self.window:
                self.window.leave_out(before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if self.item is None:
            return (yield)
        window = self._open(item)
        result = yield
        self.passed = True
        limit = self.limits[item].peak
        for device in window.devices(limit.device if limit else None):
            needed = window.peak(device)
            if limit is not None and needed > limit.nbytes:
                lines, layers = window.lines_at_peak(device), window.layers_at_peak(device)
                what = f"needed {{}} of GPU memory at its peak on cuda:{device}, and its limit is {{}}"
                self.passed = False
                pytest.fail(over_limit(what, needed, limit.nbytes, lines, layers, window.has_gap), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and _ROW in item.stash:
            report.memlab = item.stash[_ROW]  # type: ignore[attr-defined]
            del item.stash[_ROW]
        return report

    def _open(self, item: pytest.Item) -> Window:
        """Opens the window of a test, if it is not open. The test's fixtures are torn down before `_close` is called."""
        if self.window is None:
            self.window = Window(self.config.rootpath, leaks=self.limits[item].leak is not None)
            item.addfinalizer(lambda: self._close(item))
        return self.window

    def _close(self, item: pytest.Item) -> None:
        window, self.window, self.item = self.window, None, None
        assert window is not None
        limit = self.limits[item].leak
        # Frees values of torn-down fixtures; pytest would keep them longer.
        for name in self.own_fixtures:
            getattr(item, "funcargs", {}).pop(name, None)
        if limit is not None:
            instance = getattr(item, "instance", None)
            if isinstance(instance, unittest.TestCase):
                vars(instance).clear()
            del instance
        window.end(limit)
        item.stash[_ROW] = window.row(limited=any(self.limits[item]))
        item.user_properties.append(("memlab_peak_bytes", item.stash[_ROW]["peak"]))
        # The traceback of a failed test keeps its memory alive.
        if limit is None or not self.passed:
            return
        for device in window.devices(limit.device):
            left = window.leaked(device)
            if left > limit.nbytes:
                lines = window.lines_left(device)
                what = f"left {{}} of GPU memory allocated on cuda:{device}, and its limit is {{}}"
                pytest.fail(over_limit(what, left, limit.nbytes, lines, [], window.has_gap), pytrace=False)
