"""Host instructions per unit of a paged model beyond those of the plain model, counted by callgrind.

Unlike times, instruction counts are the same on a busy machine. The process under valgrind calls `os.getppid` at the start
and the end of each count, which makes callgrind write its count since the previous call.
"""

import os
import re
import subprocess
import sys
import tempfile

FEW, MANY = 4, 12  # Forwards; the difference of two counts contains only forwards.
UNITS = 192
FEATURES = 16
BUDGETS = {"all resident": "1GiB", "two places": "min"}


def make():
    """Alternating small linear layers and layer norms. Each is a unit."""
    from torch import nn

    layers = [nn.Linear(FEATURES, FEATURES) if number % 2 else nn.LayerNorm(FEATURES) for number in range(UNITS)]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def forwards(model, x):
    for count in (FEW, MANY):
        os.getppid()
        for _ in range(count):
            model(x)
    os.getppid()


def counted(device):
    """Code that runs under valgrind."""
    import memlab
    import torch

    torch.set_num_threads(1)
    x = torch.zeros(1, FEATURES, device=device)
    with torch.no_grad():
        models = [make().to(device)]
        # Parameters in a unit: the maximum of a layer.
        models += [memlab.page(make(), device, FEATURES * (FEATURES + 1), budget=budget) for budget in BUDGETS.values()]
        for model in models:
            for _ in range(5):  # Traced, measured, and some to warm up.
                model(x)
        for model in models[1:]:
            print(f"{len(model.memlab.units)} units", flush=True)
        for model in models:
            forwards(model, x)


def main(device):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--dump-before=getppid", "--separate-threads=yes", f"--callgrind-out-file={folder}/out"]
        script = ["valgrind", "--tool=callgrind", f"--log-file={folder}/log", *options, sys.executable, __file__, device]
        # The package may be visible to this process only.
        subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        taken = instructions_between(folder)
    # Of three calls for each model, the first ends the preceding work, the others some forwards.
    plain, *paged = (taken[3 * index + 2] - taken[3 * index + 1] for index in range(1 + len(BUDGETS)))
    each = UNITS * (MANY - FEW)
    print(f"{UNITS} layers on device {device}, each a unit: instructions of the main thread for each in a forward")
    print(f"  {'plain':14}{plain / each:8.0f}")
    for what, instructions in zip(BUDGETS, paged, strict=True):
        print(f"  {what:14}{instructions / each:8.0f}, of which paging {(instructions - plain) / each:8.0f}")


def instructions_between(folder):
    """Instructions of the main thread before each call of `getppid`, since the previous one."""
    taken = []
    for number in range(1, 3 * (1 + len(BUDGETS)) + 1):
        with open(f"{folder}/out.{number}-01", encoding="utf-8") as dump:
            taken.append(int(re.findall(r"^(?:summary|totals): (\d+)", dump.read(), re.MULTILINE)[0]))
    return taken


if __name__ == "__main__":
    counted(sys.argv[1])
