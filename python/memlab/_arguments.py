"""The arguments of memlab's public functions, checked before anything is moved. Messages say what to give instead."""

from __future__ import annotations

import os
from types import NoneType
from typing import Any

import torch
from torch import nn

from memlab._paging.settings import OnChange, Settings
from memlab._paging.sizes import bytes_of
from memlab.plan import Plan


def require_model(function: str, given: Any) -> None:
    """Raises TypeError unless `given` is a module whose ``forward`` is run by Python."""
    if not isinstance(given, nn.Module):
        raise TypeError(f"memlab.{function} takes a model (a torch.nn.Module), and was given {_advice(given)}")
    compiled = next((name for name, part in given.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    if compiled is not None:
        raise TypeError(
            f"memlab.{function} was given a model {f'whose part {compiled} is' if compiled else 'that is'} compiled by "
            "torch.jit, whose forwards memlab cannot wrap: give the nn.Module that it was made from"
        )


def _advice(given: Any) -> str:
    if isinstance(given, type):
        made = issubclass(given, nn.Module)
        return f"the class {given.__name__}" + (f": give a model made of it, {given.__name__}(…)" if made else "")
    if isinstance(given, Plan):
        return "a plan: give the model that it belongs to"
    if isinstance(given, (str, os.PathLike)):
        return f"{given!r}: memlab.load(path, model) reads weights from files"
    if isinstance(given, dict):
        return f"{a_or_an(type(given).__name__)}: give the model, with its weights loaded (model.load_state_dict)"
    if isinstance(given, (list, tuple)) and any(isinstance(entry, nn.Module) for entry in given):
        return f"{a_or_an(type(given).__name__)} of models: give them one by one, or as one model (nn.ModuleList)"
    if isinstance(getattr(given, "__self__", None), nn.Module):
        return f"the method {given.__name__} of a model: give the {type(given.__self__).__name__} itself"
    if callable(given) and hasattr(given, "__name__"):
        what = "a lambda" if given.__name__ == "<lambda>" else f"the function {given.__name__}"
        return f"{what}: give the model that it calls"
    return "None" if given is None else a_or_an(type(given).__name__)


def a_or_an(name: str) -> str:
    return ("an " if name[:1].lower() in "aeiou" else "a ") + name


def settings_of(
    device: torch.device | str,
    max_layer_size: int = -1,
    *,
    budget: int | str | None = None,
    prefetch: str | int = "auto",
    micro_batch: int | None = None,
    order: str = "traced",
    on_change: OnChange = "error",
    _bytes_per_second: float | None = None,
) -> Settings:
    """The arguments of `memlab.page`. Raises ValueError that names one that is wrong; see `device_of` for the device."""

    def refuse(name: str, value: Any, wanted: str) -> ValueError:
        return ValueError(f"{name}={value!r}: must be {wanted}")

    if prefetch != "auto" and (isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0):
        raise refuse("prefetch", prefetch, '"auto" or a number of units')
    if order != "traced":
        raise refuse("order", order, '"traced"')
    if on_change not in ("error", "upload"):
        raise refuse("on_change", on_change, '"error" or "upload"')
    if micro_batch is not None and (isinstance(micro_batch, bool) or not isinstance(micro_batch, int) or micro_batch < 1):
        raise refuse("micro_batch", micro_batch, "a number of samples, or None")
    if isinstance(budget, str) and budget != "min":
        budget = bytes_of(budget)
    elif isinstance(budget, float) and budget.is_integer():
        budget = int(budget)
    if isinstance(budget, bool) or not isinstance(budget, (int, str, NoneType)):
        raise refuse("budget", budget, 'bytes, a size such as "8GiB", "min" or None')
    if isinstance(max_layer_size, bool) or not isinstance(max_layer_size, (int, float)):
        raise refuse("max_layer_size", max_layer_size, "a number of parameters, or -1")
    return Settings(
        device=device_of(device),
        max_layer_size=int(max_layer_size),
        budget=budget,
        lookahead=None if prefetch == "auto" else int(prefetch),
        micro_batch=micro_batch,
        on_change=on_change,
        bytes_per_second=_bytes_per_second,
    )


def device_of(device: torch.device | str) -> torch.device:
    """The device with its index. Raises RuntimeError if there is no such device, ValueError or TypeError if it is none."""
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
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
