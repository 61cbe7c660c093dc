"""Parallel training on several simulated cards (DDP, FSDP2, tensor and expert parallel, pipelines), compared with PyTorch's
own figures."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import ON_GPU, PYTHON
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "parallel_ranks.py"
COMMUNICATION, GATHERED, REDUCE_SCATTER = 256, 8192, 16384
WIDTH, MICRO_BATCH, MICRO_BATCHES, STEPS = 256, 8, 4, 3


def launch(memlab, kind, ranks, recorded=True):
    """PyTorch's figures in each rank, and the ranks' traces."""
    if ON_GPU and (there := torch.cuda.device_count()) < ranks:
        pytest.skip(f"needs {ranks} GPUs, and the machine has {there}")
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    record = (memlab.command, "run", "-o", "job/%r.jsonl", "--") if recorded else ()
    run = memlab.run(*record, *torchrun, PROGRAM, kind, preload=False, devices=ranks)
    assert run.code == 0, run.errors
    said = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
    if any("missing" in rank for rank in said):
        pytest.skip(f"this PyTorch is too old: {said[0]['missing']}")
    assert len(said) == ranks
    return sorted(said, key=lambda rank: rank["rank"]), [memlab.folder / "job" / f"{rank}.jsonl" for rank in range(ranks)]


def exported(memlab, trace):
    """The last moment of a trace, block by block."""
    command = [memlab.command, "export", "--format", "json", "-o", "-", "--at", "end", trace]
    done = subprocess.run(command, capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    moment = json.loads(done.stdout)
    return [block for segment in moment["segments"] for block in segment["blocks"]] + moment["stray_blocks"]


def report_of_job(memlab, *options):
    command = [memlab.command, "report", *options, "job"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=memlab.folder, env=memlab.environment(COLUMNS=120))
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_tensors(memlab, said, trace):
    """Tensors have PyTorch's category, name, bytes and sharding; categories sum to the allocated bytes."""
    blocks = exported(memlab, trace)
    known = [tensor for block in blocks for tensor in block.get("tensors", [])]
    known = [(tensor["category"], tensor["name"], tensor["bytes"], tensor["shard"]) for tensor in known]
    assert Counter(known) == Counter(map(tuple, said["tensors"]))
    layer = {name: name.rpartition(".")[0] for _, name, _, _ in said["tensors"]}
    for block in blocks:
        # A block of several gradients counts where the largest is.
        names = {layer[tensor["name"]] for tensor in block.get("tensors", [])}
        assert not names or block["layer"].partition(":")[0] in names
    report = memlab.report(trace)
    held = Counter()
    for block in blocks:
        held[block["category"]] += block["bytes"]
    assert sum(held.values()) == said["allocated"]
    at_end = {category["name"]: category["bytes_at_end"] for category in report["categories"]}
    # (On a card, libraries also hold workspaces and communicators in driver memory.)
    on_top = {"workspace", "nccl"} if ON_GPU else set()
    assert all(at_end[name] == size or (name in on_top and at_end[name] > size) for name, size in held.items())
    # PyTorch frees NCCL's communicators at the end. (On a card NCCL may keep memory.)
    assert at_end["nccl"] == 0 or ON_GPU
    assert report["devices"][0]["peak_allocated_bytes"] == said["peak"]
    return report, held


@pytest.mark.parametrize(
    ("kind", "ranks"), [("ddp", 2), ("ddp_views", 2), ("fsdp2", 2), ("hsdp", 4), ("tp", 2), ("fsdp2_tp", 4), ("ep", 2)]
)
def test_every_tensor_of_a_rank_has_its_name_and_its_shard(memlab, kind, ranks):
    """GIVEN training whose ranks, on a card each, share data, parameters, or experts
    WHEN each is recorded
    THEN parameters, gradients and optimizer state have qualified names, the bytes of the rank's shard and PyTorch's
    sharding; and the buffers that ranks exchange equal those of DDP and FSDP to the byte."""
    ranks_say, traces = launch(memlab, kind, ranks)
    for said, trace in zip(ranks_say, traces, strict=True):
        _, held = check_tensors(memlab, said, trace)
        parameters = sum(rounded(size) for category, _, size, _ in said["tensors"] if category == "parameter")
        assert held["parameter"] == (said["shards"] or parameters)
        assert held["gathered"] == said["gathered"]
        if kind == "ddp":
            assert held["ddp_bucket"] == sum(map(rounded, said["buckets"]))
        if kind == "ddp_views":
            # PyTorch 2.11 may keep the first step's bucket, which holds all gradients: on cards one rank does, another does
            # not.
            kept = held["gradient"] - sum(map(rounded, said["buckets"]))
            assert kept == 0 or (said["torch"].startswith("2.11.") and kept == rounded(sum(said["buckets"])))
        if said["reduce_scatter"]:
            check_reductions(said, trace)


def rounded(size):
    return -(-size // 512) * 512


def check_reductions(said, trace):
    """FSDP's buffers for gradients: for each part, all ranks' rows before the reduction and this rank's afterwards."""
    blocks = [event for event in Trace(trace).events if event[0] == "a" and event[8] & REDUCE_SCATTER]
    assert all(event[8] & COMMUNICATION for event in blocks)
    before = Counter(map(rounded, said["reduce_scatter"]))
    ranks = 2
    after = Counter(rounded(size // ranks) for size in said["reduce_scatter"])
    expected = {size: STEPS * count for size, count in (before + after).items()}
    sizes = Counter(event[5] for event in blocks)
    # The remaining sizes are arguments of the copy kernels.
    assert {size: sizes.pop(size) for size in expected} == expected
    assert all(size < min(expected) for size in sizes)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_the_stages_of_a_pipeline_are_known(memlab, kind):
    """GIVEN a pipeline over two ranks, with one or two stages on each
    WHEN its ranks are recorded
    THEN each trace lists its stages, layers have the names of the stage's modules in the full model, and tensors received
    from other stages are communication."""
    ranks_say, traces = launch(memlab, kind, 2)
    count = 4 if kind == "interleaved" else 2
    for said, trace in zip(ranks_say, traces, strict=True):
        report, _ = check_tensors(memlab, said, trace)
        process = report["process"]
        stages = [said["rank"], said["rank"] + 2] if kind == "interleaved" else [said["rank"]]
        assert (process["stages"], process["stage_count"]) == (stages, count)
        assert process["mesh"] == [{"name": "pp", "coordinate": said["rank"], "size": 2}]
        layers = {layer["name"] for layer in report["layers"]}
        assert {f"blocks.{block}.up" for block in range(4) if block * count // 4 in stages} <= layers
        received = [event for event in Trace(trace).events if event[0] == "a" and event[8] & COMMUNICATION]
        sizes = Counter(event[5] for event in received)
        assert sizes[MICRO_BATCH * WIDTH * 4] >= MICRO_BATCHES
    # AND the job's report has them side by side, and compares no stage with another
    job = json.loads(report_of_job(memlab, "--json"))
    assert [rank["stages"] for rank in job["ranks"]] == ([[0, 2], [1, 3]] if kind == "interleaved" else [[0], [1]])
    assert job["differences"] == []
    text = report_of_job(memlab)
    assert f"mesh pp=2 · {count} stages of a pipeline: 0 on rank 0, 1 on rank 1" in text


@pytest.mark.long
def test_a_rank_reports_its_position_in_the_mesh(memlab):
    """GIVEN training on a mesh of two dimensions, FSDP2 over one and tensor parallel over the other
    WHEN rank and job are reported
    THEN each rank has its coordinates in both, and NCCL's memory is a separate category: a communicator for each dimension,
    and one for all ranks."""
    _, traces = launch(memlab, "fsdp2_tp", 4)
    for rank, trace in enumerate(traces):
        report = memlab.report(trace)
        places = [(row["name"], row["coordinate"], row["size"]) for row in report["process"]["mesh"]]
        assert places == [("dp", rank // 2, 2), ("tp", rank % 2, 2)]
        at_peak = {row["name"]: row["bytes_at_peak"] for row in report["categories"]}
        assert at_peak["nccl"] > 0 if ON_GPU else at_peak["nccl"] == 3 * (32 << 20)
        assert at_peak["gathered"] > 0
    job = json.loads(report_of_job(memlab, "--json"))
    assert [[row["coordinate"] for row in rank["mesh"]] for rank in job["ranks"]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert "mesh dp=2 × tp=2" in report_of_job(memlab)
    page = memlab.folder / "job.html"
    report_of_job(memlab, "--html", page)
    assert "dp=1 tp=0" in page.read_text()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("fsdp2_tp", 4), ("interleaved", 2)])
def test_recording_changes_nothing(memlab, kind, ranks):
    """GIVEN parallel training
    WHEN it runs with memlab and without
    THEN PyTorch's results and counts are the same: memlab has created no tensor and no collective."""
    recorded, _ = launch(memlab, kind, ranks)
    plain, _ = launch(memlab, kind, ranks, recorded=False)
    # On a card these vary between runs without memlab too: a bucket is freed once PyTorch sees that its exchange has ended.
    vary = {"allocated", "peak"} if ON_GPU else set()
    recorded, plain = ([{key: one[key] for key in one.keys() - vary} for one in of_run] for of_run in (recorded, plain))
    assert recorded == plain
