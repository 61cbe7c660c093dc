"""The limits set by a test's markers."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from memlab._native import parse_size


class Limit(NamedTuple):
    """An argument of a marker."""

    nbytes: int
    device: int | None  # None: each device.


class Limits(NamedTuple):
    """The limits of a test; None without a marker."""

    peak: Limit | None
    leak: Limit | None


def limits_of(item: pytest.Item) -> Limits:
    """The limits of a test. Its own markers take precedence over those of its class and module.

    Raises pytest.UsageError if a marker's arguments are wrong.
    """
    return Limits(_limit(item, "gpu_memory", ()), _limit(item, "gpu_leak", (0,)))


def _limit(item: pytest.Item, name: str, default: tuple[int, ...]) -> Limit | None:
    marker = item.get_closest_marker(name)
    if marker is None:
        return None
    named = dict(marker.kwargs)
    device = named.pop("device", None)
    given = (*marker.args, *([named.pop("limit")] if "limit" in named else ())) or default
    try:
        if len(given) != 1 or named:
            raise ValueError("it takes one size, and optionally device=")
        return Limit(_bytes(given[0]), _device(device))
    except ValueError as error:
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{name}: {error}") from None


def _bytes(given: object) -> int:
    if isinstance(given, str):
        return parse_size(given)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f"{given!r} is not a size: use a number of bytes, or a string such as '2GiB'")
    return given


def _device(given: object) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    kind, _, number = str(given).partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise ValueError(f"{given!r} is not a GPU: use a number, or 'cuda:1'")
    return int(number)
