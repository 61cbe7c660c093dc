"""Moves a program's memory off the GPU and back, on the real driver."""

import json
import os
import random
import subprocess
import sys
import time

from harness import MEMLAB, MOVE, ROOT, Failed, Skip

sys.path.insert(0, str(ROOT / "tests" / "move"))
import control

MOVED = MOVE / "moved.py"
WAYS = {
    "eager": ([], {}),
    "graph": (["--graph"], {}),
    "expandable_segments": ([], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
}
SIZE = ["--width", "1024", "--layers", "8", "--ballast", "1024"]
SMALL = ["--ballast", "64"]


class Training:
    """tests/move/programs/moved.py under memlab."""

    def __init__(self, harness, folder, *arguments, env=None, **more):
        self.harness, self.until = harness, folder / "enough"
        settings = {"MEMLAB_OFFLOAD": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(env or {}), **more}
        command = [sys.executable, MOVED, self.until, *(SMALL if harness.simulated else SIZE), *arguments]
        if harness.simgpu:
            command = [harness.simgpu, "--memory", "8GiB", *command]
        self.errors = open(folder / "errors", "w+")  # noqa: SIM115 (open as long as the process)
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=harness.environment(True, settings),
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        assert self.process.stdout
        if self.process.stdout.readline() != "ready\n":
            raise Failed(f"it did not start: {self.said()}")

    @property
    def pid(self):
        return self.process.pid

    def said(self):
        self.errors.seek(0)
        return self.errors.read()[-3000:]

    def end(self):
        """Ends the program and returns its recorded steps."""
        self.until.touch()
        output, _ = self.process.communicate(timeout=max(5, min(120, self.harness.left())))
        if self.process.returncode != 0:
            raise Failed(f"exit status {self.process.returncode}: {self.said()}")
        if "memlab:" in self.said():
            raise Failed(f"memlab complained: {self.said()}")
        return json.loads(output)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.errors.close()


def undisturbed(harness, folder, steps, *arguments):
    """Steps of an undisturbed training."""
    command = [MOVED, "/", "--steps", steps, *(SMALL if harness.simulated else SIZE), *arguments]
    run = harness.python(folder, *command, memlab=False, env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, timeout=240)
    return json.loads(run.output.splitlines()[-1])


def compare(seen, harness, folder, *arguments):
    steps = 2 if harness.simulated else len(seen)
    expected = undisturbed(harness, folder, steps, *arguments)
    if harness.simulated:
        expected = expected[:1] * len(seen)
    wrong = [number for number, (one, other) in enumerate(zip(seen, expected, strict=True)) if one != other]
    return (
        [f"{len(wrong)} of {len(seen)} steps differ from an undisturbed training's, from step {wrong[0]} on"]
        if wrong
        else []
    )


def used_mib():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.split()[0])


def check_cycles(harness, folder, way):
    """Checks that a training, offloaded and restored at random moments, has the losses and bytes of an undisturbed one."""
    arguments, env = WAYS[way]
    moments = random.Random(1)
    with Training(harness, folder, *arguments, env=env) as training:
        for _ in range(12):
            time.sleep(moments.uniform(0, 0.3))
            out = control.operate(training.pid, "offload")
            away = control.status(training.pid)
            back = control.operate(training.pid, "restore")
        if away["device_bytes"] or not away["host_bytes"]:
            return [f"not all of it left: {away}"]
        harness.note(f"cycle {way}", {"out": brief(out), "back": brief(back), "fixed": away["fixed_bytes"]})
        seen = training.end()
    return compare(seen, harness, folder, *arguments)


def brief(operation):
    return {
        "gib": round(operation["total_bytes"] / 2**30, 2),
        "seconds": round(operation["seconds"], 3),
        "copy_seconds": round(operation["copy_seconds"], 3),
    }


def check_parts(harness, folder):
    """Moves pages to host memory at the same addresses while the training runs, then restores them."""
    moments = random.Random(2)
    with Training(harness, folder) as training:
        spans = control.segments(next(folder.glob("*.jsonl")))
        speeds = []
        for _ in range(4):
            start, end = moments.choice(spans)
            ranges = [[at, 2 << 20] for at in range(start, end - (2 << 20) + 1, 2 << 20) if moments.random() < 0.5]
            if not ranges:
                continue
            control.ask(training.pid, command="offload", ranges=ranges)
            outcome = control.finish(training.pid)
            if outcome["phase"] != "done" and "none of this memory" not in outcome["error"]:
                return [f"moving parts: {outcome}"]
            speeds.append(brief(outcome))
            time.sleep(0.3)
            if moments.random() < 0.5:
                control.operate(training.pid, "offload")
            if control.status(training.pid)["host_bytes"]:
                control.operate(training.pid, "restore")
        harness.note("parts", speeds)
        seen = training.end()
    return compare(seen, harness, folder)


FILL = """
import ctypes, sys
import torch
torch.zeros(1, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")
size = 8 << 30
held = 0
while size >= 2 << 20:
    pointer = ctypes.c_uint64()
    if driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0:
        held += size
    else:
        size //= 2
print("full", held, flush=True)
sys.stdin.readline()
"""


def check_card(harness, folder):
    """Checks which memory stays on the GPU, and a restore to a full GPU."""
    if harness.simulated:
        return Skip("needs nvidia-smi, and a card that two commands share")
    base = used_mib()
    with Training(harness, folder) as training:
        resident = used_mib()
        out = control.operate(training.pid, "offload")
        time.sleep(0.5)
        away, status = used_mib(), control.status(training.pid)
        moved = out["total_bytes"] >> 20
        harness.note("card", {"base": base, "resident": resident, "offloaded": away, "moved": moved, "status": status})
        if abs(resident - away - moved) > 64:
            return [f"{moved} MiB were moved, and nvidia-smi sees {resident - away} MiB less"]
        filler = subprocess.Popen(
            [sys.executable, "-c", FILL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=harness.environment(False, {}),
        )
        assert filler.stdout and filler.stdin
        harness.log(f"     the other process: {filler.stdout.readline().strip()}")
        for _ in range(3):
            control.ask(training.pid, command="restore")
            outcome = control.finish(training.pid)
            if outcome["phase"] != "failed" or not outcome["retryable"]:
                filler.kill()
                return [f"restored to a full card: {outcome}"]
        harness.note("full", outcome["error"])
        filler.communicate("\n", timeout=60)
        control.operate(training.pid, "restore")
        seen = training.end()
    return compare(seen, harness, folder)


def check_speed(harness, folder):
    """Records the figures of benches/move.py, without checking them."""
    result = harness.out / "move.json"
    simulated = ["--simulated"] if harness.simulated else ["--gib", *os.environ.get("MOVE_GIB", "10 40").split()]
    command = [sys.executable, ROOT / "benches" / "move.py", "--json", result, *simulated]
    run = harness.run(folder, *command, memlab=False, simulated=False, timeout=420)
    harness.log("     " + run.output.strip().replace("\n", "\n     "))
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    return Skip("ran; its times are no figures") if harness.simulated else []


def memlab(harness, *words, code=0):
    """Runs the command and returns its last line."""
    done = subprocess.run([str(word) for word in (MEMLAB, *words)], capture_output=True, text=True, timeout=120, check=False)
    said = (done.stdout + done.stderr).strip()
    harness.log(f"     memlab {' '.join(map(str, words))}: {said}")
    if done.returncode != code:
        raise Failed(f"memlab {words}: exit status {done.returncode}: {said}")
    return said


def check_commands(harness, folder):
    """Offloads by category while the program runs, and with the driver's checkpoint; checks `ps`."""
    with Training(harness, folder) as training:
        pid = training.pid
        memlab(harness, "offload", pid, "--category", "parameter")
        memlab(harness, "ps")
        time.sleep(1)
        memlab(harness, "offload", pid)
        memlab(harness, "restore", pid)
        if not harness.simulated:
            before = used_mib()
            memlab(harness, "offload", pid, "--full")
            memlab(harness, "ps")
            harness.note("full", {"before_mib": before, "checkpointed_mib": used_mib()})
            memlab(harness, "restore", pid)
        memlab(harness, "offload", pid)
        memlab(harness, "restore", pid, "--free-host")
        seen = training.end()
    return compare(seen, harness, folder)


OUT_OF_MEMORY = """
import json, torch
blocks = []
try:
    while True:
        blocks.append(torch.ones(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    print(json.dumps([torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory,
                      torch.cuda.mem_get_info()[1]]))
"""


def check_limit(harness, folder):
    """Checks a GPU limited to 2 GiB, and a training that spills over its limit."""
    if harness.simulated:
        return Skip("see tests/move/test_limit.py")
    limit = 2 << 30
    run = harness.python(folder, "-c", OUT_OF_MEMORY, env={"MEMLAB_LIMIT": "2GiB"}, timeout=60)
    reserved, *totals = json.loads(run.output)
    harness.note("limit", {"reserved": reserved, "totals": totals})
    if totals != [limit, limit] or not limit - (1 << 30) < reserved < limit:
        return [f"under a limit of {limit}: PyTorch reserved {reserved} and was told {totals}"]
    spilling = {"MEMLAB_LIMIT": "3GiB", "MEMLAB_ON_LIMIT": "spill", "MEMLAB_OFFLOAD": "0"}
    base = used_mib()
    with Training(harness, folder, env=spilling) as training:
        used = used_mib() - base
        (limited,) = control.ask(training.pid, command="status")["limits"]
        harness.note("spill", {"used_mib": used, **limited})
        if not limited["spilled_bytes"] or used > 3072 + 64:
            return [f"{used} MiB used under a limit of 3072 MiB: {limited}"]
        seen = training.end()
    return compare(seen, harness, folder)


def check_pressure(harness, folder):
    """Checks that offloadable programs read back their data while they fill the card until it has no memory left."""
    real = [] if harness.simulated else ["--real"]
    running = []
    for seed in range(3):
        env = harness.environment(True, {"MEMLAB_OFFLOAD": "1", "MEMLAB_OUTPUT": str(folder / f"{seed}.jsonl")})
        command = [sys.executable, MOVE / "pressure.py", "20", str(seed), *real]
        if harness.simgpu:
            command = [harness.simgpu, *command]
        words = [str(word) for word in command]
        running.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    problems = []
    for program in running:
        output, errors = program.communicate(timeout=120)
        harness.note("pressure", output.strip())
        if program.returncode != 0:
            problems.append(errors[-1500:] or output)
    return problems
