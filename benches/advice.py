"""What `memlab advise` says of the peak, beside what PyTorch takes when the program is changed so, as a table.

Each training of `tests/programs/advised.py` is recorded, advised on, and run again for each piece of advice, on the
simulated card."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "programs" / "advised.py"
MEMLAB = ROOT / "target" / "release" / "memlab"
SIMGPU = [ROOT / "simgpu" / "simgpu", "--memory", "8GiB"]
KINDS = ["gpt", "gpt-eager", "resnet", "unet", "llama-lora", "words", "gradients", "optimizer", "lengths"]
MIB = 1 << 20


def run(*command, **env):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=os.environ | env)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def advice_on(kind):
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        run(*SIMGPU, MEMLAB, "run", "--time", "-o", trace, "--", sys.executable, PROGRAM, kind)
        return json.loads(run(MEMLAB, "advise", "--json", trace))["advice"]


def following(kind, advice):
    """PyTorch's peaks when the program does as it is told."""
    env = {"ADVICE": json.dumps(advice)}
    if advice["how"].startswith("export "):
        name, _, value = advice["how"].removeprefix("export ").partition("=")
        env[name] = value
    return json.loads(run(*SIMGPU, sys.executable, PROGRAM, kind, **env).splitlines()[-1])


def main():
    print("| program | advice | where | before, MiB | said | measured | error |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for advice in advice_on(kind):
            said, measured = advice["bytes_after"], following(kind, advice)[advice["figure"]]
            before = said + advice["saved_bytes"]
            sizes = " | ".join(f"{size / MIB:.1f}" for size in (before, said, measured))
            error = f"{100 * (said - measured) / measured:+.2f} %"
            print(f"| {kind} | {advice['kind']} | {advice['where']} | {sizes} | {error} |", flush=True)


if __name__ == "__main__":
    main()
