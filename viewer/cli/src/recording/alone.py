"""One process in place of all ranks: what `memlab plan` has a distributed program do on a simulated card.

The process is rank 0. Simulated NCCL needs no other ranks (each is taken to have this one's data), so what is left to
replace is what starts ranks, what has them meet, and gloo, which really sends data.
"""

import contextlib
import importlib
import os
import sys
import types

# As many as NVIDIA's machines have.
MOST_RANKS_OF_A_MACHINE = 8


def ranks_asked_for():
    """What `memlab plan --ranks` says, if it was given."""
    return int(os.environ.get("MEMLAB_PLAN_RANKS", "0"))


def environment(ranks, ranks_of_machine=None):
    """What torchrun tells rank 0."""
    if ranks_of_machine is None:
        fitting = (count for count in range(MOST_RANKS_OF_A_MACHINE, 0, -1) if ranks % count == 0)
        ranks_of_machine = next(fitting)
    zero = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), "0")
    return zero | {
        "WORLD_SIZE": str(ranks),
        "ROLE_WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks_of_machine),
        "GROUP_WORLD_SIZE": str(ranks // ranks_of_machine),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "memlab-plan",
    }


def begin():
    """At Python's start, in the program and in its launcher."""
    if ranks_asked_for():
        os.environ.update(environment(ranks_asked_for()))


def launch(config, entrypoint, arguments, *_others, **_options):
    """In place of what torchrun and `accelerate launch` end in: rank 0 here, the others nowhere."""
    of_machine = config.nproc_per_node
    ranks = ranks_asked_for() or config.max_nodes * of_machine
    of_machine = of_machine if ranks % of_machine == 0 else None
    os.environ.update(environment(ranks, of_machine))
    if callable(entrypoint):
        return {0: entrypoint(*arguments)}
    os.environ.pop("MEMLAB_PLAN_RANKS", None)  # What the program is told is settled.
    # As many cards as the machine has ranks. The launcher may have looked at fewer.
    os.environ["SIMGPU_DEVICES"] = os.environ["LOCAL_WORLD_SIZE"]
    os.environ["SIMGPU_CARDS"] = os.environ.get("SIMGPU_CARDS", "") + "-ranks"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(entrypoint, [entrypoint, *map(str, arguments)])


class Joined:
    """What `torch.multiprocessing.spawn(join=False)` returns, after rank 0 has run."""

    processes = ()

    def join(self, *_arguments, **_options):
        return True


def start_processes(function, args=(), nprocs=1, join=True, *_others, **_options):
    """In place of `torch.multiprocessing.spawn`: process 0 here, the others nowhere."""
    function(0, *args)
    return None if join else Joined()


def is_simulated():
    return bool(os.environ.get("MEMLAB_PLAN_SIMULATED"))


def patch_launcher(api):
    """`torch.distributed.launcher.api` was imported."""
    api.launch_agent = launch


def patch_checkpoints(planner):
    """`torch.distributed.checkpoint.default_planner` was imported. All shards are those of rank 0: no whole."""
    no_state = types.SimpleNamespace(state_dict_metadata={})
    no_errors = planner._validate_global_plan([], no_state)  # A list; once it was True.
    planner._validate_global_plan = lambda *_arguments: no_errors


def patch(torch):
    """PyTorch was imported."""
    if not torch.distributed.is_available():
        return
    group = importlib.import_module("torch.distributed.distributed_c10d")
    group.rendezvous = rendezvous
    group._store_based_barrier = lambda *_arguments, **_options: None
    # A communicator that is split does not tell NCCL how many ranks the parts have.
    group._get_split_source = lambda *_arguments, **_options: None
    splitting = [torch.distributed, group]
    with contextlib.suppress(ImportError):  # PyTorch 2.1 has its meshes elsewhere, and splits no group.
        splitting.append(importlib.import_module("torch.distributed.device_mesh"))
    for module in splitting:
        if hasattr(module, "split_group"):
            module.split_group = split_group
    if hasattr(group, "_object_to_tensor"):
        objects = Objects(group._object_to_tensor)
        group._object_to_tensor, group._tensor_to_object = objects.to_tensor, objects.of_tensor
    if hasattr(group, "ProcessGroupGloo"):
        group.ProcessGroupGloo = Gloo
    importlib.import_module("torch.multiprocessing.spawn").start_processes = start_processes
    torch.multiprocessing.start_processes = start_processes


def rendezvous(_url, rank=-1, world_size=-1, **_options):
    """A store that nobody else writes to."""
    rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
    world_size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
    yield importlib.import_module("torch.distributed").HashStore(), rank, world_size


def split_group(parent_pg=None, split_ranks=(), timeout=None, pg_options=None, group_desc=None, **_options):
    """The part of a group that this rank is in, as a group of its own."""
    group = importlib.import_module("torch.distributed.distributed_c10d")
    this = group.get_rank(parent_pg)
    own = next((ranks for ranks in split_ranks if this in ranks), None)
    if own is None:
        return group.GroupMember.NON_GROUP_MEMBER
    if parent_pg is not None:
        own = [group.get_global_rank(parent_pg, rank) for rank in own]
    return group.new_group(own, timeout=timeout, pg_options=pg_options, group_desc=group_desc)


class Objects:
    """Objects that ranks send each other: every rank has sent what this one has.

    (Kernels, which compute nothing here, would have to copy them.)
    """

    def __init__(self, convert):
        self.convert, self.last = convert, None

    def to_tensor(self, sent, *arguments, **options):
        self.last = sent
        return self.convert(sent, *arguments, **options)

    def of_tensor(self, *_arguments, **_options):
        return self.last


class Gloo:
    """In place of `ProcessGroupGloo`."""

    def __new__(cls, _store, rank, size, *_arguments, **_options):
        fake = importlib.import_module("torch._C._distributed_c10d").FakeProcessGroup
        return getattr(fake, "_create_internal", fake)(rank, size)
