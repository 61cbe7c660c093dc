"""Runs trainings under `memlab run --fit` at three quarters and at half of what they take."""

import json
import re
import sys

from harness import MEMLAB, OWN_PROGRAMS, ROOT, Failed

CASES = ("llama", "llama_lora", "t5", "vit", "resnet", "unet", "gan", "lstm")
SHARES = (75, 50)
ZOO = OWN_PROGRAMS / "fit_zoo.py"


def figures(run):
    rows = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
    return rows[-1] if rows else None


def check_case(harness, folder, case):
    """The program fits, or is refused; what it computes stays the same."""
    environment = {"DETERMINISTIC": 1, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

    def unmodified(*options):
        return harness.run(folder, sys.executable, ZOO, case, *options, memlab=False, env=environment)

    run = unmodified()
    plain = figures(run)
    if plain is None:
        raise Failed(f"the program failed: {run.errors[-1500:]}")
    others = set(re.findall(r"(\S+) does not have a deterministic implementation", run.errors))
    rows = {"plain": plain, "by hand": figures(unmodified("--checkpoint"))}
    wrong = []
    for share in SHARES:
        target = plain["footprint"] * share // 100
        command = [MEMLAB, "run", "--force", "-o", folder / "fit.jsonl", "--fit", f"{target >> 20}MiB"]
        command += ["--", sys.executable, ZOO, case]
        run = harness.run(folder, *command, memlab=False, env=environment, timeout=240)
        message = re.search(r"memlab: (.*(?:Fits in|does not fit|which fits).*)", run.errors)
        row = rows[f"{share} %"] = figures(run)
        harness.log(f"     {message[1] if message else run.errors[-2000:]}")
        if row is None:
            if run.code != 2:
                wrong.append(f"{share} %: failed with {run.code}: {run.errors[-1500:]}")
            continue
        if row["footprint"] > target:
            wrong.append(f"{share} %: takes {row['footprint']} of {target} bytes")
        if row["hash"] != plain["hash"]:
            again = figures(unmodified())
            if again["hash"] == plain["hash"]:
                wrong.append(f"{share} %: computes something else")
            else:
                reason = ", ".join(others) or "for an unknown reason"
                harness.log(f"     the program itself differs from run to run ({reason})")
    gib = {name: row and (row["step_ms"], round(row["footprint"] / 2**30, 2), row["hash"]) for name, row in rows.items()}
    harness.note(f"fit {case}", gib)
    return wrong


def check_spilling(harness, folder):
    """A training with memory on the host computes the same, and has none there after some steps."""
    command = [sys.executable, ROOT / "benches/on_gpu/fit_truth.py"]
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    wrong = []
    for what, limits in {"gpt": ("3GiB", "2GiB"), "conv": ("2GiB", "1400MiB")}.items():
        plain = harness.run(folder, *command, what, 12, memlab=False, env=environment)
        for limit in limits:
            run = [MEMLAB, "run", "--force", "-o", folder / "spill.jsonl", "--limit", limit, "--on-limit", "spill", "--"]
            run = harness.run(folder, *run, *command, what, 12, memlab=False, env=environment, timeout=240)
            for line in re.findall(r"memlab: (cuda:.*)", run.errors):
                harness.log(f"     {what} in {limit}: {line}")
            expected, found = (re.search(rf"{what}: \S+ loss \S+", it.output) for it in (plain, run))
            if run.code != 0 or expected is None or found is None or found[0] != expected[0]:
                wrong.append(f"{what} in {limit}: {run.output[-300:]}, not {plain.output[-300:]}: {run.errors[-800:]}")
    return wrong


def check_loss(harness, folder):
    """The loss in rows has PyTorch's bits."""
    run = harness.run(folder, sys.executable, ROOT / "benches/on_gpu/loss_in_rows.py", memlab=False, timeout=120)
    harness.log(run.output)
    return [] if "0 cases differ" in run.output else [run.output[-500:] + run.errors[-500:]]
