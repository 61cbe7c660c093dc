"""`memlab plan` of distributed training: one process that runs as rank 0 has the memory of rank 0 in a real group."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import PYTHON, ROOT, full
from test_plan import plan, planned

PROGRAMS = Path(__file__).parent / "programs"

RANKS = PROGRAMS / "planned_ranks.py"
# 48 is recorded as well, being the largest; 20 is not.
PREDICTED = [20, 48]


def launch(memlab, kind, batch, ranks, *options):
    """PyTorch's own peaks in rank 0, with a process for each rank and a card for each process."""
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    program = (*torchrun, RANKS, kind, "--batch", batch, *options)
    run = memlab.run(*program, simgpu=("--card", "h100"), memory="80GiB", devices=ranks, preload=False)
    assert run.code == 0, run.errors
    return json.loads(run.output.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("ddp-views", 2), ("ddp-gloo", 2), ("fsdp", 2), ("fsdp2", 4), *full(("ddp", 2), ("fsdp2", 2))],
)
def test_one_process_takes_what_rank_0_takes_to_the_byte(memlab, kind, ranks):
    """GIVEN distributed training planned in one process, from batch 8 and 16
    WHEN torchrun starts all ranks, each with its own card, at other batches
    THEN PyTorch's peaks in rank 0 are the planned ones."""
    batches = ",".join(map(str, PREDICTED))
    arguments = ("--ranks", ranks, "--predict", batches)
    answer = planned(memlab, *arguments, program=(RANKS, kind, "--batch", "{batch}"))
    runs = [launch(memlab, kind, batch, ranks) for batch in PREDICTED]
    assert (answer["rank"], answer["ranks"]) == (0, ranks)
    assert [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in answer["batches"]] == runs


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fsdp2", *full("ddp")])
def test_an_evaluation_by_all_ranks_is_planned_to_the_byte(memlab, kind):
    """GIVEN distributed training in epochs, each with an evaluation in larger batches
    WHEN it is planned in one process, from batch 8 and 16, and torchrun starts all ranks at other batches
    THEN evaluation is a phase, and PyTorch's peaks in rank 0 are the planned ones."""
    options = ("--epochs", "3", "--evaluated", "4")
    arguments = ("--ranks", 2, "--predict", ",".join(map(str, PREDICTED)))
    answer = planned(memlab, *arguments, program=(RANKS, kind, "--batch", "{batch}", *options))
    runs = [launch(memlab, kind, batch, 2, *options) for batch in PREDICTED]
    assert [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in answer["batches"]] == runs
    assert {row["name"] for row in answer["phases"]} == {"training", "evaluation"}


@pytest.mark.parametrize("saving", ["distributed", "async"])
def test_shards_are_saved_by_one_process_and_not_written(memlab, saving):
    """GIVEN FSDP2 that saves its shards with torch.distributed.checkpoint
    WHEN it is planned in one process
    THEN saving is a phase that has not failed, and no checkpoint is written."""
    program = (RANKS, "fsdp2", "--batch", "8", "--saving", saving, "--checkpoint", "checkpoint")
    answer = planned(memlab, "--ranks", "2", program=program)
    assert {row["name"] for row in answer["phases"]} == {"training", "saving"}
    assert not any("failed" in warning for warning in answer["warnings"])
    assert not list(memlab.folder.rglob("checkpoint*"))


ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "4")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        ((), ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--nnodes", "2", "--node-rank", "0")),
        ((), ACCELERATE),
        *full((("--ranks", "4"), ("-m", "torch.distributed.run", "--nproc-per-node", "gpu"))),
    ],
    ids=["torchrun", "accelerate", "all of the machine's cards"],
)
def test_a_launcher_determines_the_number_of_ranks(memlab, arguments, program):
    """GIVEN a command that begins with a launcher of four ranks
    WHEN it is planned
    THEN its script is planned as rank 0 of four, as with --ranks; also if it starts its own processes."""
    script = (RANKS, "fsdp2", "--batch", "{batch}")
    with ThreadPoolExecutor(2) as pool:
        launched = pool.submit(planned, memlab, *arguments, "--predict", "8", program=(*program, *script))
        spawned = pool.submit(planned, memlab, "--ranks", "4", "--predict", "8", program=(*script, "--spawn"))
        answers = [launched.result(), spawned.result()]
    assert [answer["ranks"] for answer in answers] == [4, 4]
    assert answers[0]["batches"] == answers[1]["batches"]


GROUPS = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
ranks = dist.get_world_size()
assert torch.cuda.device_count() == int(os.environ["LOCAL_WORLD_SIZE"]) == 8
for group in (None, dist.new_group(backend="gloo")):
    said = [None] * ranks
    dist.all_gather_object(said, {"rank": 0}, group=group)
    assert said == [{"rank": 0}] * ranks, said
    sent = ["words", 3]
    dist.broadcast_object_list(sent, src=0, group=group)
    assert sent == ["words", 3], sent
    dist.barrier(group)
mesh = init_device_mesh("cuda", (2, ranks // 2), mesh_dim_names=("copies", "shards"))
whole = torch.zeros(int(sys.argv[1]), 1 << 20, device="cuda")
part = torch.empty(int(sys.argv[1]) * 2 // ranks, 1 << 20, device="cuda")
dist.reduce_scatter_tensor(part, whole, group=mesh["shards"].get_group())
weights = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
optimizer = torch.optim.SGD([weights])
for _ in range(8):
    (weights * part).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_groups_and_objects_need_no_other_ranks(memlab):
    """GIVEN a program that gathers and sends objects, waits for all ranks and divides them into a mesh of two times eight
    WHEN it is planned as rank 0 of sixteen
    THEN it runs, on a machine with eight cards, and its part is an eighth."""
    answer = planned(memlab, "--ranks", "16", "--predict", "64", program=("-c", GROUPS, "{batch}"))
    assert answer["ranks"] == 16
    (part,) = [row["bytes"] for row in answer["lines"] if row["name"].startswith("<string>:18")]
    assert part == pytest.approx(answer["peak"]["batch"] / 8 * (4 << 20), rel=0.01)


def test_ranks_of_a_real_gpu_are_refused(memlab):
    """GIVEN --ranks with --on gpu
    WHEN it is planned
    THEN the error explains that other ranks can only be simulated."""
    done = plan(memlab, "--on", "gpu", "--ranks", "2", program=(RANKS, "ddp", "--batch", "{batch}"))
    assert done.returncode != 0
    assert "leave out --on gpu" in done.stderr
    assert not list(Path(memlab.folder).glob("*.jsonl"))


WITHOUT_MESHES = """
import importlib.util, sys, torch
sys.modules["torch.distributed.device_mesh"] = None
specification = importlib.util.spec_from_file_location("alone", sys.argv[1])
alone = importlib.util.module_from_spec(specification)
specification.loader.exec_module(alone)
alone.patch(torch)
print(torch.distributed.distributed_c10d.rendezvous is alone.rendezvous)
"""


def test_a_pytorch_without_device_meshes_is_prepared(memlab):
    """GIVEN a PyTorch without torch.distributed.device_mesh, like 2.1
    WHEN a plan's process replaces the ranks' functions
    THEN it replaces the rest."""
    run = memlab.python("-c", WITHOUT_MESHES, ROOT / "viewer" / "cli" / "src" / "recording" / "alone.py", preload=False)
    assert (run.code, run.output) == (0, "True\n"), run.errors
