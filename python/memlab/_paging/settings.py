"""The arguments of `memlab.page`, checked before anything is moved. Messages name valid values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

import torch

from memlab._paging.sizes import bytes_of

# Reaction to a weight edited between forwards: raise, or copy it to the device.
OnChange = Literal["error", "upload"]


@dataclass(frozen=True)
class Settings:
    """See `memlab.page` for the meaning of each."""

    device: torch.device
    max_layer_size: int = -1
    budget: int | str | None = None  # Bytes, "min", or None: the least that still hides the copies.
    lookahead: int | None = None  # Units; None: as many as the ring holds.
    micro_batch: int | None = None
    on_change: OnChange = "error"
    shared: str | None = None  # Name of the sharing group, "" for the whole host; None: nothing is shared.
    bytes_per_second: float | None = None  # Paces the copies of the host backend, for benchmarks; not an argument of `page`.

    @classmethod
    def several(cls, devices: list[Any] | tuple[Any, ...], budget: Any = None, **options: Any) -> list[Settings]:
        """Returns settings for several devices. `budget`: one for each device, by position or by device, or one for all."""
        if not devices:
            raise _refusal("device", devices, 'a device, such as "cuda", or a list of them')
        if options.get("micro_batch") is not None:
            raise ValueError("micro_batch is for a model on one device: leave it out, or give one device")
        where = [device_of(device) for device in devices]
        twice = next((device for device in where if where.count(device) > 1), None)
        if twice is not None:
            raise ValueError(f"device={list(map(str, devices))}: {twice} is there twice; name each device once")
        if len({device.type for device in where}) > 1:
            raise ValueError(f"device={list(map(str, devices))}: all must be GPUs (the CPU's are for tests)")
        budgets = budget
        if isinstance(budget, dict):
            known = {device_of(device): value for device, value in budget.items()}
            unknown = known.keys() - where
            if unknown:
                raise ValueError(
                    f"budget names {', '.join(map(str, unknown))}, which device does not: name devices of the list"
                )
            budgets = [known.get(device) for device in where]
        elif not isinstance(budget, (list, tuple)):
            budgets = [budget] * len(where)
        if len(budgets) != len(where):
            raise _refusal("budget", budget, f"one for each of the {len(where)} devices, or one size that each has")
        return [cls.checked(device, budget=one, **options) for device, one in zip(where, budgets, strict=True)]

    @classmethod
    def checked(
        cls,
        device: torch.device | str,
        max_layer_size: int = -1,
        *,
        budget: int | str | None = None,
        prefetch: str | int = "auto",
        micro_batch: int | None = None,
        order: str = "traced",
        on_change: OnChange = "error",
        shared: str | None = None,
    ) -> Settings:
        """Checks the arguments of `memlab.page`.

        Raises ValueError that names a wrong one; see `device_of` for the device.
        """
        if prefetch != "auto" and (isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0):
            raise _refusal("prefetch", prefetch, '"auto" or a number of units')
        if order != "traced":
            raise _refusal("order", order, '"traced"')
        if on_change not in ("error", "upload"):
            raise _refusal("on_change", on_change, '"error" or "upload"')
        if shared is not None and (not isinstance(shared, str) or not re.fullmatch(r"host(:.+)?", shared)):
            raise _refusal("shared", shared, '"host", "host:NAME" for a name of your own, or None')
        if micro_batch is not None and (
            isinstance(micro_batch, bool) or not isinstance(micro_batch, int) or micro_batch < 1
        ):
            raise _refusal("micro_batch", micro_batch, "a number of samples, or None")
        if isinstance(budget, str) and budget != "min":
            budget = bytes_of(budget)
        elif isinstance(budget, float) and budget.is_integer():
            budget = int(budget)
        if isinstance(budget, bool) or not isinstance(budget, (int, str, NoneType)):
            raise _refusal("budget", budget, 'bytes, a size such as "8GiB", "min" or None')
        if isinstance(max_layer_size, bool) or not isinstance(max_layer_size, (int, float)):
            raise _refusal("max_layer_size", max_layer_size, "a number of parameters, or -1")
        return cls(
            device=device_of(device),
            max_layer_size=int(max_layer_size),
            budget=budget,
            lookahead=None if prefetch == "auto" else int(prefetch),
            micro_batch=micro_batch,
            on_change=on_change,
            shared=None if shared is None else shared.removeprefix("host").removeprefix(":"),
        )


def _refusal(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"{name}={value!r}: must be {wanted}")


def device_of(device: torch.device | str) -> torch.device:
    """Returns the device with its index.

    Raises RuntimeError if it does not exist, ValueError or TypeError if it is not a device.
    """
    if isinstance(device, (list, tuple)):
        raise ValueError(f"device={device!r}: only memlab.page takes several devices; give one")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = f'device={device!r}: must be a device, such as "cuda" or "cuda:1"'
        if isinstance(device, str) and not device[:1].isdigit():
            raise ValueError(wanted) from None
        raise TypeError(f'{wanted}. Sizes are given by name: budget="8GiB", max_capacity="8GiB"') from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ValueError(f"device={str(device)!r}: memlab pages to CUDA devices and, for tests, to the CPU")
    if not torch.cuda.is_available():
        raise RuntimeError('PyTorch finds no CUDA device here; page(model, device="cpu") runs the same pipeline without one')
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise RuntimeError(
            f"device={str(device)!r}: PyTorch finds {torch.cuda.device_count()} CUDA device(s) here, from cuda:0 on"
        )
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
