"""Throttle of the agent's searches, with the test's own clock."""

import runpy

import pytest
from conftest import ROOT


class Clock:
    moment = 0.0

    def __call__(self):
        return self.moment


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def throttle(clock):
    return runpy.run_path(str(ROOT / "interpose/src/python/throttle.py"))["_Throttle"](clock)


def test_a_search_takes_less_than_a_hundredth_of_the_time(throttle, clock):
    # GIVEN a search that took 2 seconds
    assert throttle.is_open()
    with throttle:
        clock.moment = 2
    # THEN the next may begin 100 times its duration after its end, and not before
    clock.moment = 201.9
    assert not throttle.is_open()
    clock.moment = 202
    assert throttle.is_open()
    # AND after a short search, the next may begin soon
    with throttle:
        clock.moment = 202.25
    clock.moment = 227.25
    assert throttle.is_open()


def test_a_search_that_was_interrupted_counts(throttle, clock):
    # GIVEN a search that a signal handler of the program ended with an exception
    with pytest.raises(KeyboardInterrupt), throttle:
        clock.moment = 1
        raise KeyboardInterrupt
    # THEN the exception reaches the program, AND the next search does not begin at once
    clock.moment = 100.9
    assert not throttle.is_open()
    # AND WHEN the program ends, THEN it does
    throttle.reopen()
    assert throttle.is_open()
