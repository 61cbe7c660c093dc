"""Runs one process: one method on one model, for one or several shapes. Reports one dictionary per shape."""

import contextlib
import gc
import importlib
import os
import statistics
import threading
import time
import traceback

import methods
import networks
import shapes
import torch

CEILING_BYTES = 256 << 20
SMALL_CEILING_BYTES = 8 << 20
# Forwards after the first and before the timed ones.
WARM_UP = 3
# A forward that takes longer than this share of the available time needs fewer repetitions.
SLOW = 0.1
FEWEST = 3
# Reported attributes of memlab's schedule.
PLAN = ["stage", "predicted_ms", "achieved_ms", "gigabytes_per_second", "bytes_per_second", "counters", "notes", "pinned"]
PLAN += ["resident_bytes", "ring_bytes", "kept_bytes", "gathered_bytes", "streamed_bytes", "host_bytes"]


class Gpu:
    def __init__(self, cap):
        torch.cuda.init()
        self.stream = torch.cuda.current_stream()
        if cap is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap / torch.cuda.get_device_properties(0).total_memory))

    def wait(self):
        """Waits for the forward, not for the copies for the next one."""
        torch.cuda.current_stream().synchronize()

    def ceiling(self, size):
        """GB/s of pinned copies to the GPU."""
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        times = []
        for _ in range(8):
            torch.cuda.synchronize()
            start = time.perf_counter()
            there.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return size / statistics.median(times[2:]) / 1e9

    def clear(self):
        gc.collect()
        torch.cuda.empty_cache()
        if hasattr(torch._C, "_host_emptyCache"):
            torch._C._host_emptyCache()

    def reset_peaks(self):
        torch.cuda.reset_peak_memory_stats()

    def peaks(self):
        return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}

    def free(self):
        return torch.cuda.mem_get_info()[0]


class Cpu:
    """memlab's host backend, and methods that work without a GPU: to try the benchmark and compare outputs."""

    def wait(self):
        pass

    def ceiling(self, size):
        return None

    def clear(self):
        gc.collect()

    def reset_peaks(self):
        pass

    def peaks(self):
        return {}

    def free(self):
        return 0


def nvml_used():
    """Bytes in use on the first visible GPU, as nvidia-smi reports them; None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible) if visible.isdigit() else 0)
        return pynvml.nvmlDeviceGetMemoryInfo(handle).used
    except Exception:
        return None


def fields(path):
    with open(path) as file:
        return {key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in file) if "kB" in rest}


def host_used():
    """Bytes of the machine's memory in use. The figures of a process exclude pinned memory."""
    memory = fields("/proc/meminfo")
    return memory["MemTotal"] - memory["MemAvailable"]


class HostPeak(threading.Thread):
    """Peak of the machine's memory in use, sampled a hundred times a second, less the initial use."""

    def __init__(self, base):
        super().__init__(daemon=True)
        self.base, self.peak, self.over = base, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.01):
            self.peak = max(self.peak, host_used() - self.base)

    def stop(self):
        self.over.set()
        self.join()
        return self.peak


def pinned_by_torch():
    try:
        return torch.cuda.memory.host_memory_stats().get("allocated_bytes.current")
    except (AttributeError, RuntimeError):
        return None


def timed(forward, device, seconds, wanted, warm_up):
    """Seconds of each of `wanted` forwards, or of as many as the time allows; and the last output."""
    start = time.perf_counter()
    forward()
    device.wait()
    once = time.perf_counter() - start
    if once < seconds * SLOW:
        for _ in range(warm_up - 1):
            forward()
        device.wait()
    count = max(FEWEST, min(wanted, int(seconds / max(once, 1e-9))))
    times = []
    output = None
    last = time.perf_counter()
    for _ in range(count):
        output = None  # Frees its memory for the next one.
        output = forward()
        device.wait()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times, output


def resident_seconds(model, call, device, seconds):
    """Median forward with all weights on the GPU, in this process. Then moves the model back to the CPU."""
    if networks.weight_bytes(model) + (8 << 30) > device.free():
        return None
    tensors = [*model.parameters(), *model.buffers()]
    on_cpu = [tensor.data for tensor in tensors]
    for tensor in tensors:
        tensor.data = tensor.data.to("cuda")
    with torch.no_grad():
        times, _ = timed(lambda: model(*call), device, seconds, 5, 2)
    for tensor, data in zip(tensors, on_cpu, strict=True):
        tensor.data = data
    device.clear()
    return statistics.median(times)


class Reference:
    """The resident model's output in a file, for comparison."""

    def __init__(self, folder, shape, layers):
        self.path = os.path.join(folder, f"{shape.model}-{layers or 'all'}-{shape.tokens}.pt")

    def save(self, output):
        torch.save(output.cpu(), self.path)

    def compare(self, output):
        """True, or a description of the difference, or None without a reference."""
        if not os.path.exists(self.path):
            return None
        wanted, found = torch.load(self.path, mmap=True), output.cpu()
        if torch.equal(wanted, found):
            return True
        if wanted.shape != found.shape or wanted.dtype != found.dtype:
            return f"{tuple(found.shape)} {found.dtype} for {tuple(wanted.shape)} {wanted.dtype}"
        apart = (wanted.float() - found.float()).abs().max().item()
        return f"differs by {apart:.2g}, where values reach {wanted.float().abs().max().item():.2g}"


def plan_of(model):
    """Attributes of memlab's schedule."""
    plan = getattr(model, "memlab", None)
    if plan is None:
        return None
    said = {name: getattr(plan, name, None) for name in PLAN}
    return said | {"units": len(plan.units), "table": str(plan)}


def measure(task, shape, model, call, device, started, base):
    """Measures one shape with a model that is already set up."""
    forward = lambda: model(*call)  # noqa: E731
    reference = Reference(task["folder"], shape, task["layers"])
    found: dict = {}
    device.reset_peaks()
    watch = HostPeak(base)
    watch.start()
    try:
        with torch.no_grad():
            start = time.perf_counter()
            output = forward()
            device.wait()
            found["first_seconds"] = time.perf_counter() - start
    finally:
        found["host_peak_first"] = watch.stop()
    if task["method"] == "resident" and not os.path.exists(reference.path):
        reference.save(output)
    found["equal_first"] = reference.compare(output)
    output = None
    found["peak_first"] = device.peaks()
    device.reset_peaks()
    with torch.no_grad():
        wanted = shape.forwards or task["forwards"]
        times, output = timed(forward, device, task["seconds"], wanted, WARM_UP)
    found["times"] = times
    found["peak"] = device.peaks()
    found["equal_last"] = reference.compare(output)
    used = nvml_used()
    found["nvml"] = used - started["nvml"] if used is not None and started["nvml"] is not None else None
    status = fields("/proc/self/status")
    found["rss"], found["rss_peak"] = status["VmRSS"], status["VmHWM"]
    found["host"], found["pinned_by_torch"] = host_used() - base, pinned_by_torch() if task["device"] == "cuda" else None
    found["plan"] = plan_of(model)
    return found


def work(task, say):
    """Runs `task`: the method, the shapes of one model, options. `say` gets a dictionary as soon as a shape is done."""
    stage = "starting"
    started = {"nvml": nvml_used() if task["device"] == "cuda" else None}
    base = host_used()
    wanted = list(task["shapes"])
    common = {"method": task["method"], "round": task["round"]}
    try:
        device = Gpu(task["cap"]) if task["device"] == "cuda" else Cpu()
        small = task["scale"] == "small"
        common["ceiling_gbs"] = device.ceiling(SMALL_CEILING_BYTES if small else CEILING_BYTES)
        device.clear()
        method = methods.METHODS[task["method"]]
        if method.needs_gpu and task["device"] == "cpu":
            raise methods.Unfit("needs a GPU")
        stage, start = "importing", time.perf_counter()
        if method.package:
            importlib.import_module(method.package)
        common["import_seconds"] = time.perf_counter() - start
        stage, start = "making the weights", time.perf_counter()
        model = shapes.build(wanted[0], task["scale"], task["layers"])
        common["build_seconds"] = time.perf_counter() - start
        common |= {"weights": networks.weight_bytes(model), "blocks": len(shapes.blocks(model))}
        calls = [shapes.inputs(shape, task["scale"], task["device"]) for shape in wanted]
        needed = [shapes.must_be_sent(shape, model, call) for shape, call in zip(wanted, calls, strict=True)]
        residents = [None] * len(wanted)
        if task["resident"] and task["device"] == "cuda" and method.track != "resident":
            stage = "the resident time"
            residents = [resident_seconds(model, call, device, task["seconds"]) for call in calls]
        stage = "setting up"
        budget = shapes.budget(wanted[0], model)
        job = methods.Job(model, shapes.blocks(model), task["device"], budget)
        watch = HostPeak(base)
        watch.start()
        start = time.perf_counter()
        try:
            with torch.no_grad():
                model = method.start(job)
            device.wait()
        finally:
            common["setup_seconds"] = time.perf_counter() - start
            common["host_peak_setup"] = watch.stop()
        common |= {"notes": job.notes, "budget": budget}
        for shape, call, bytes_needed, alone in zip(list(wanted), calls, needed, residents, strict=True):
            stage = f"running {shape.name}"
            own = {"shape": shape.name, "needed": bytes_needed, "resident_seconds": alone}
            say(common | own | measure(task, shape, model, call, device, started, base))
            wanted.remove(shape)
    except (Exception, torch.OutOfMemoryError) as error:
        for shape in wanted:
            why = f"{stage}: {methods.in_words(error)}"
            say(common | {"shape": shape.name, "error": why, "traceback": traceback.format_exc()[-3000:]})


def run_apart(task, pipe, log):
    """Runs in a process forked from one that has only imported PyTorch. Never returns."""
    with contextlib.suppress(BaseException):
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        (task.get("work") or work)(task, pipe.send)
        pipe.close()
    os._exit(0)  # Skips teardown, which is not measured.
