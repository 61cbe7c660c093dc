"""The simulated GPU's CUPTI, as read by torch.profiler and by a separate program."""

import itertools
import json
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


PAGEABLE, PINNED, DEVICE = 1, 2, 3
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


def profiled(memlab):
    """The events of a step, those of a graph that was replayed twice, and the driver's own lists of kernels."""
    traces = [memlab.folder / name for name in ("step.json", "graph.json")]
    run = memlab.python(PROGRAMS / "profiled.py", *traces, simgpu=("--card", "h100"), preload=False)
    assert run.code == 0, run.errors
    return *(json.loads(trace.read_text())["traceEvents"] for trace in traces), json.loads(run.output.splitlines()[-1])


def of(events, *categories):
    return sorted((event for event in events if event.get("cat") in categories), key=lambda event: event["ts"])


def names(kernels):
    return sorted(kernel["name"] for kernel in kernels)


def test_the_profiler_lists_what_the_driver_was_given(memlab):
    # GIVEN a training step, and the driver's list of its kernels; WHEN PyTorch profiles the same step
    step, graph, driver = profiled(memlab)
    # THEN the profile lists these kernels, including those of cuBLAS and cuDNN
    kernels = of(step, "kernel")
    assert names(kernels) == sorted(driver["step"])
    assert any("cublas" in name for name in driver["step"]) and any("cudnn" in name for name in driver["step"])
    # AND each belongs to a call with the same correlation id
    calls = [call["args"]["correlation"] for call in of(step, "cuda_runtime", "cuda_driver")]
    work = of(step, "kernel", "gpu_memcpy", "gpu_memset")
    assert {each["args"]["correlation"] for each in work} <= set(calls)
    assert len({each["args"]["correlation"] for each in work}) == len(work)
    # AND the copies have their directions and sizes
    copies = [(copy["name"], copy["args"]["bytes"]) for copy in of(step, "gpu_memcpy")]
    assert sorted(copies) == [
        ("Memcpy DtoD (Device -> Device)", 1024),
        ("Memcpy DtoH (Device -> Pinned)", 1024),
        ("Memcpy HtoD (Pageable -> Device)", 16 * 3 * 32 * 32 * 4),
    ]
    # AND work on each stream does not overlap; a nanosecond is lost where the profiler rounds
    by_stream = itertools.groupby(sorted(work, key=lambda each: (each["args"]["stream"], each["ts"])), stream_of)
    streams = {stream: list(events) for stream, events in by_stream}
    assert len(streams) == 2
    for events in streams.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.003 for a, b in itertools.pairwise(events))
    # AND each replay of a graph has the captured kernels, with the correlation id of the replay
    launches = [call["args"]["correlation"] for call in of(graph, "cuda_runtime") if "GraphLaunch" in call["name"]]
    assert len(launches) == 2
    for launch in launches:
        replayed = [kernel for kernel in of(graph, "kernel") if kernel["args"]["correlation"] == launch]
        assert names(replayed) == sorted(driver["captured"])


def stream_of(event):
    return event["args"]["stream"]


def test_records_and_callbacks(memlab):
    # GIVEN a program that subscribes, enables records, copies, fills and launches
    run = memlab.python(PROGRAMS / "activities.py", simgpu=("--card", "h100"), preload=False)
    assert run.code == 0, run.errors
    said = json.loads(run.output)
    # THEN a second subscriber is refused
    assert said["second"] == [39, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"]
    # AND the first is called around the copy, and around the driver's part of it, with the correlation id of the outer call
    correlation = said["records"][0]["correlation"]
    expected = [(2, 31, 0), (1, 276, 0), (1, 276, 1), (2, 31, 1)]
    assert said["calls"] == [[*call, correlation] for call in expected]
    # AND each call has a record, after those of its device work and of the program's own id
    plain = [{key: value for key, value in record.items() if key != "correlation"} for record in said["records"]]
    link, latency = 32 * 16 / 8 * 128 / 130, 1000
    mib = 1 << 20
    upload = {"copy": HOST_TO_DEVICE, "from": PAGEABLE, "to": DEVICE, "async": 0, "bytes": mib}
    download = {"copy": DEVICE_TO_HOST, "from": DEVICE, "to": PAGEABLE, "async": 1, "bytes": mib // 2}
    assert plain == [
        {"kind": 1, **upload, "took": latency + int(mib / link)},
        {"kind": 39, "id": 77},
        {"kind": 5, "function": "cudaMemcpy_v3020"},
        {"kind": 2, "bytes": 4096},
        {"kind": 5, "function": "cudaMemsetAsync_v3020"},
        {"kind": 1, **download, "took": latency + int(mib / 2 / link)},
        {"kind": 5, "function": "cudaMemcpyAsync_v3020"},
        {"kind": 10, "grid": [5, 2, 1], "name": "a_kernel"},
        {"kind": 4, "function": "cuLaunchKernel"},
    ]
    ids = [record["correlation"] for record in said["records"]]
    assert [len(list(group)) for _, group in itertools.groupby(ids)] == [3, 2, 2, 2]
    # AND full buffers return on another thread, and no record of work after the end arrives
    assert said["other_threads"] > 0 and said["later"] == 20
