"""Checks that a public function of memlab was given a model. The messages suggest a remedy."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from memlab.plan import Plan


def require_model(function: str, given: Any) -> None:
    """Raises TypeError unless `given` is a module whose ``forward`` runs in Python."""
    if not isinstance(given, nn.Module):
        raise TypeError(f"memlab.{function} takes a model (a torch.nn.Module), not {_advice(given)}")
    compiled = next((name for name, part in given.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    if compiled is not None:
        raise TypeError(
            f"memlab.{function} cannot wrap forwards compiled by torch.jit, as in {compiled or 'this model'}: pass the "
            "original nn.Module"
        )


def _advice(given: Any) -> str:
    if isinstance(given, type):
        made = issubclass(given, nn.Module)
        return f"the class {given.__name__}" + (f": pass an instance of it, {given.__name__}(…)" if made else "")
    if isinstance(given, Plan):
        return "a plan: pass the model that it belongs to"
    if isinstance(given, (str, os.PathLike)):
        return f"{given!r}: memlab.load(path, model) reads weights from files"
    if isinstance(given, dict):
        return f"{a_or_an(type(given).__name__)}: pass the model with its weights loaded (model.load_state_dict)"
    if isinstance(given, (list, tuple)) and any(isinstance(entry, nn.Module) for entry in given):
        return f"{a_or_an(type(given).__name__)} of models: pass them one by one, or as one model (nn.ModuleList)"
    if isinstance(getattr(given, "__self__", None), nn.Module):
        return f"the method {given.__name__} of a model: pass the {type(given.__self__).__name__} itself"
    if callable(given) and hasattr(given, "__name__"):
        what = "a lambda" if given.__name__ == "<lambda>" else f"the function {given.__name__}"
        return f"{what}: pass the model that it calls"
    return "None" if given is None else a_or_an(type(given).__name__)


def a_or_an(name: str) -> str:
    return ("an " if name[:1].lower() in "aeiou" else "a ") + name
