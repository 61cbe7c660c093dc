"""Measures the speed of moving a program's GPU memory to the host and back, compared with the bus and with other tools.

    benches/move.py [--gib 10 40] [--rounds 3] [--json FILE]         on a machine with an NVIDIA GPU
    benches/move.py --simulated                                     tries the script

In one run, for each size, each with the same tensors in a separate process:

- the ceiling: one pinned buffer, one stream, the same bytes both ways;
- memlab: `offload` and `restore` of an unmodified program, the first time (host memory is pinned) and after that; with
  `--offload=ready`, the first time too;
- `tensor.cpu()` and `.cuda()` of everything, as pytorch_memlab's Courtesy does;
- torch_memory_saver, if it is installed;
- the driver's checkpoint (cuCheckpointProcess…), if the driver has it.

Also measures the cost while nothing moves: a launch through the open gate, and memory backed by virtual memory management
compared with plain `cudaMalloc`.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "target" / "release" / "libmemlab.so"
SIMGPU = ROOT / "simgpu" / "simgpu"
sys.path.insert(0, str(ROOT / "tests" / "move"))

GIB = 1 << 30
# A training has thousands of tensors in a few hundred segments.
TENSOR = 64 << 20


def tensors(size):
    import torch

    held = [torch.empty(TENSOR, dtype=torch.uint8, device="cuda") for _ in range(size // TENSOR)]
    for number, tensor in enumerate(held):
        tensor.fill_(number % 251)
    torch.cuda.synchronize()
    return held


def check(held):
    if "SIMGPU_CARDS" in os.environ:
        return  # On the simulated GPU, kernels do nothing, and `fill_` is a kernel.
    for number, tensor in enumerate(held):
        assert int(tensor[12345]) == int(tensor[-1]) == number % 251, f"tensor {number} is wrong"


def ceiling(size, rounds):
    """GB/s of one pinned copy in each direction."""
    import torch

    chunk = min(size, 4 * GIB)
    device = torch.empty(chunk, dtype=torch.uint8, device="cuda")
    host = torch.empty(chunk, dtype=torch.uint8, pin_memory=True)
    times: dict = {"out": [], "back": []}
    for _ in range(rounds + 1):
        for way, to, source in (("out", host, device), ("back", device, host)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times[way].append(time.perf_counter() - start)
    return {way: chunk / min(taken[1:]) / 1e9 for way, taken in times.items()}


def there_and_back(held, rounds, out, back):
    """Best seconds in each direction; checks the bytes afterwards."""
    import torch

    times: dict = {"out": [], "back": []}
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        out()
        middle = time.perf_counter()
        back()
        torch.cuda.synchronize()
        times["out"].append(middle - start)
        times["back"].append(time.perf_counter() - middle)
    check(held)
    return {way: min(taken) for way, taken in times.items()}


def courtesy(size, rounds):
    """Seconds of `.cpu()` and `.cuda()` of everything."""
    import torch

    held = tensors(size)

    def out():
        held[:] = [tensor.cpu() for tensor in held]
        torch.cuda.empty_cache()

    def back():
        held[:] = [tensor.cuda() for tensor in held]

    return there_and_back(held, rounds, out, back)


def memory_saver(size, rounds):
    """Seconds of torch_memory_saver's pause and resume, with a copy in host memory."""
    from torch_memory_saver import torch_memory_saver as saver

    with saver.region(enable_cpu_backup=True):
        held = tensors(size)
    return there_and_back(held, rounds, saver.pause, saver.resume)


def hold(size, rounds):
    """Holds memory until it receives the command to check it."""
    held = tensors(size)
    print("ready", flush=True)
    sys.stdin.readline()
    check(held)
    return {"checked": len(held)}


def plain_calls(count):
    """Microseconds to allocate and to free with this process's `cuMemAlloc`."""
    import torch

    torch.zeros(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    results = {}
    for mib in (2, 20, 128, 1024) if "SIMGPU_CARDS" not in os.environ else (2, 20):
        pointers = [ctypes.c_uint64() for _ in range(count)]
        start = time.perf_counter()
        for pointer in pointers:
            assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20)) == 0
        middle = time.perf_counter()
        for pointer in pointers:
            assert driver.cuMemFree_v2(pointer) == 0
        end = time.perf_counter()
        results[f"{mib} MiB"] = {"alloc_us": (middle - start) / count * 1e6, "free_us": (end - middle) / count * 1e6}
    return results


def segments(size, rounds):
    return plain_calls(max(4, min(32, size // (1024 << 20))))


def command(args, *what):
    base = [str(SIMGPU), "--memory", "8GiB"] if args.simulated else []
    return [*base, sys.executable, str(Path(__file__).resolve()), "--part", *map(str, what)]


def environment(**more):
    own = ("MEMLAB", "LD_PRELOAD", "PYTORCH_")
    keep = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    return keep | more


def part(args, name, size, folder, preload=None, **env):
    more = {"LD_PRELOAD": preload} if preload else {}
    done = subprocess.run(
        command(args, name, size, args.rounds), env=environment(**more, **env), cwd=folder, capture_output=True, text=True
    )
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def moved(args, size, folder, prepare, out, back):
    """Times to move a program that holds `size` bytes. `out` and `back` take its process id."""
    env = environment(**prepare)
    process = subprocess.Popen(
        command(args, "hold", size, 1), env=env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdin
    if process.stdout.readline() != "ready\n":
        return {"error": "the program did not start"}
    result: dict = {"out": [], "back": []}
    try:
        for _ in range(args.rounds + 1):
            result["out"].append(out(process.pid))
            result["back"].append(back(process.pid))
    except Exception as error:  # A refusal by the driver is a result too.
        process.kill()
        process.wait()
        return {"error": str(error)}
    process.stdin.write("\n")
    process.stdin.flush()
    last = process.communicate(timeout=300)[0].splitlines()
    if process.returncode != 0 or not last:
        return {"error": f"the program failed afterwards with {process.returncode}"}
    return result


def by_memlab(args, size, folder, offload="1"):
    import control

    def wait_until_ready(pid):
        for _ in range(600 if offload == "ready" else 0):
            move = control.status(pid)
            if move["arena_bytes"] >= move["device_bytes"]:
                return
            time.sleep(0.1)

    def timed(command):
        def move(pid):
            wait_until_ready(pid)
            start = time.perf_counter()
            operation = control.operate(pid, command)
            return {"seconds": time.perf_counter() - start, **operation}

        return move

    prepare = {"LD_PRELOAD": str(LIBRARY), "MEMLAB_OFFLOAD": offload, "MEMLAB_OUTPUT": f"{folder}/held-%p.jsonl"}
    return moved(args, size, folder, prepare, timed("offload"), timed("restore"))


def by_checkpoint(args, size, folder):
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": str(error)}
    if not hasattr(driver, "cuCheckpointProcessLock"):
        return {"error": "this driver has no cuCheckpointProcess…"}
    driver.cuInit(0)

    class LockArgs(ctypes.Structure):
        _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved", ctypes.c_uint64 * 7))

    def do(name, pid, argument=None):
        code = getattr(driver, name)(ctypes.c_int(pid), ctypes.byref(argument) if argument else None)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def out(pid):
        start = time.perf_counter()
        do("cuCheckpointProcessLock", pid, LockArgs(timeout_ms=60000))
        do("cuCheckpointProcessCheckpoint", pid)
        return {"seconds": time.perf_counter() - start}

    def back(pid):
        start = time.perf_counter()
        do("cuCheckpointProcessRestore", pid)
        do("cuCheckpointProcessUnlock", pid)
        return {"seconds": time.perf_counter() - start}

    return moved(args, size, folder, {}, out, back)


def by_memory_saver(args, size, folder):
    """torch_memory_saver with its own library preloaded."""
    try:
        import torch_memory_saver

        (binary,) = Path(torch_memory_saver.__file__).parent.parent.glob("torch_memory_saver_hook_mode_preload_cu13*.so")
    except (ImportError, ValueError) as error:
        return {"error": f"not there: {error!r}"}
    return part(args, "memory_saver", size, folder, preload=str(binary))


METHODS = {
    "memlab": by_memlab,
    "memlab, ready": lambda args, size, folder: by_memlab(args, size, folder, "ready"),
    "courtesy": lambda args, size, folder: part(args, "courtesy", size, folder),
    "checkpoint": by_checkpoint,
    "torch_memory_saver": by_memory_saver,
}


def measure(args):
    found: dict = {"sizes": {}}
    with tempfile.TemporaryDirectory(prefix="memlab-move-") as folder:
        found["segments"] = {
            "cuMemAlloc": part(args, "segments", 16 * GIB, folder),
            "backed": part(args, "segments", 16 * GIB, folder, preload=str(LIBRARY), MEMLAB_OFFLOAD="1"),
        }
        for gib in args.gib:
            size = int(gib * GIB)
            row = found["sizes"][str(gib)] = {"ceiling": part(args, "ceiling", size, folder)}
            for method in args.methods:
                start = time.perf_counter()
                row[method] = METHODS[method](args, size, folder)
                print(f"{gib} GiB, {method}: measured in {time.perf_counter() - start:.0f} s", file=sys.stderr)
            row["ceiling again"] = part(args, "ceiling", size, folder)
            report(args, gib, row)
    return found


def report(args, gib, row):
    if args.simulated:
        print(f"{gib} GiB: simulated; its times are no figures: {json.dumps(row)[:400]}")
        return
    limit = {way: max(row[name].get(way, 0) for name in ("ceiling", "ceiling again")) for way in ("out", "back")}
    print(f"{gib} GiB: ceiling {limit['out']:.1f} GB/s out, {limit['back']:.1f} GB/s back")
    held = gib * GIB / 1e9
    for name in args.methods:
        entry = row[name]
        if "error" in entry:
            print(f"  {name}: {entry['error']}")
            continue
        for way in ("out", "back"):
            if isinstance(entry[way], list):
                seconds = [one["seconds"] for one in entry[way]]
                later = statistics.median(seconds[1:])
                first = f", the first time {seconds[0]:.2f} s"
                copying = [one.get("copy_seconds") for one in entry[way][1:]]
                if all(copying):
                    copied = statistics.median(copying)
                    first += f"; of these {copied:.2f} s copying ({held / copied / limit[way] * 100:.0f} % of the ceiling)"
            else:
                later, first = entry[way], ""
            percent = held / later / limit[way] * 100
            print(f"  {name} {way}: {later:.2f} s, {held / later:.1f} GB/s, {percent:.0f} % of the ceiling{first}")


PARTS = {function.__name__: function for function in (ceiling, courtesy, memory_saver, hold, segments)}


def main():
    if sys.argv[1:2] == ["--part"]:
        name, size, rounds = sys.argv[2:]
        print(json.dumps(PARTS[name](int(size), int(rounds))))
        sys.stdout.flush()
        os._exit(0)  # Skips teardown, which is not measured.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="+", default=[10, 40])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.simulated:
        args.gib, args.rounds = [0.25], 1
    found = measure(args)
    print(json.dumps(found["segments"], indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


main()
