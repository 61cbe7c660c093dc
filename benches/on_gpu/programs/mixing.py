"""Checks on a GPU that models whose samples interact are refused, and no others: those of
tests/batches/test_mixing_found.py, and layers whose kernels may compute in TF32.

Prints a JSON line for each of them, with the errors in "wrong", if any.
"""

import json
from itertools import product
from unittest import mock

import memlab
import torch
from memlab._batches import trial
from test_mixing_found import APART, APART_AT_RANDOM, BATCH, CLASSES, DTYPES, MIXING, SHARED, Mixing, both, in_pieces
from torch import nn

WIDE = {
    "wide layers": (lambda: nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)]), (BATCH, 2048)),
    "wide convolutions": (
        lambda: nn.Sequential(*[nn.Conv2d(128, 128, 3, padding=1) for _ in range(8)]),
        (BATCH, 128, 32, 32),
    ),
}


def meeting(kind, dtype):
    """Finds the weakest mixing that is refused, and the largest error of accepted mixing, in roundings."""
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(BATCH, 7, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator).cuda()
    weakest, worst = None, 0.0
    for power in range(16):
        model = Mixing(lambda x: MIXING[kind](x, 10.0**-power), dtype).cuda()  # noqa: B023
        try:
            worst = max(worst, both(model, inputs.to("cuda", dtype), labels, 4) / torch.finfo(dtype).eps)
        except RuntimeError as error:
            assert "depend on the other samples" in str(error), error
            weakest = 10.0**-power
    wrong = [] if weakest is not None and worst <= (512 if dtype is torch.float64 else 16) else ["not found"]
    return {"case": kind, "dtype": str(dtype), "weakest": weakest, "roundings": round(worst, 1), "wrong": wrong}


def at_random(kind, between, is_shared):
    """Checks that random numbers shared by all samples are refused, and no others."""
    wrong = []
    for dtype in DTYPES:
        try:
            in_pieces(between, dtype, "cuda")
            is_refused = False
        except RuntimeError as error:
            is_refused = "share random numbers" in str(error)
            wrong += [] if is_refused else [f"{dtype}: {error}"]
        wrong += [] if is_refused == is_shared else [f"{dtype}: refused: {is_refused}"]
    return {"case": kind, "wrong": wrong}


def apart(kind, make, shape):
    """Tries a model in each number format, also where the trial cannot use float64. It should not be refused."""
    wrong = []
    for formats, matmul, dtype, size in product(
        (list(trial.TrialForm), [trial.TrialForm.REPLICA]), ("highest", "high"), DTYPES, (1, 4, 7)
    ):
        torch.set_float32_matmul_precision(matmul)
        torch.manual_seed(0)
        inputs, model = torch.randn(shape).to("cuda", dtype), make().to("cuda", dtype)
        try:
            with mock.patch.object(trial.TrialForm, "of", return_value=formats):
                memlab.accumulate(model, inputs, lambda outputs: outputs.square().mean(), micro_batch=size)
        except RuntimeError as error:
            if "returned other outputs for the same samples" in str(error):
                continue  # cuDNN's dropout in recurrent layers, which no seed repeats, is refused with a separate message.
            wrong.append(f"{formats[0].name}, {matmul}, {dtype}, {size}: {error}")
    return {"case": kind, "wrong": wrong}


for dtype in DTYPES:
    for kind in MIXING:
        print(json.dumps(meeting(kind, dtype)), flush=True)
for kind, (make, shape) in (APART | WIDE).items():
    print(json.dumps(apart(kind, make, shape)), flush=True)
for kind, between in SHARED.items():
    print(json.dumps(at_random(f"shared {kind}", lambda x, f=between: f(x, 1.0), True)), flush=True)
for kind, between in APART_AT_RANDOM.items():
    print(json.dumps(at_random(f"random {kind}", between, False)), flush=True)
