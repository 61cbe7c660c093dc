"""Runs a distributed program as one process, rank 0, when `memlab plan` records it on a simulated card.

Simulated NCCL needs no other ranks: it assumes that each has the data of rank 0. This module replaces the rest: the
functions that start ranks, their rendezvous, and gloo, which really sends data.
"""

import contextlib
import importlib
import os
import sys
import types

# NVIDIA's machines have at most 8 GPUs.
MOST_RANKS_OF_A_MACHINE = 8


def ranks_asked_for():
    """Returns the number of ranks given to `memlab plan --ranks`; 0: none given."""
    return int(os.environ.get("MEMLAB_PLAN_RANKS", "0"))


def environment(ranks, ranks_of_machine=None):
    """Returns the environment variables that torchrun sets for rank 0."""
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
    """Sets the environment of rank 0 at Python's start, in the program and in its launcher."""
    if ranks_asked_for():
        os.environ.update(environment(ranks_asked_for()))


def launch(config, entrypoint, arguments, *_others, **_options):
    """Replaces the last function of torchrun and `accelerate launch`: runs rank 0 here and no others."""
    of_machine = config.nproc_per_node
    ranks = ranks_asked_for() or config.max_nodes * of_machine
    of_machine = of_machine if ranks % of_machine == 0 else None
    os.environ.update(environment(ranks, of_machine))
    if callable(entrypoint):
        return {0: entrypoint(*arguments)}
    os.environ.pop("MEMLAB_PLAN_RANKS", None)  # The program's environment is final.
    # One card for each rank of the machine. The launcher may have set fewer.
    os.environ["SIMGPU_DEVICES"] = os.environ["LOCAL_WORLD_SIZE"]
    os.environ["SIMGPU_CARDS"] = os.environ.get("SIMGPU_CARDS", "") + "-ranks"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(entrypoint, [entrypoint, *map(str, arguments)])


class Joined:
    """Result of `torch.multiprocessing.spawn(join=False)`, after rank 0 has run."""

    processes = ()

    def join(self, *_arguments, **_options):
        return True


def start_processes(function, args=(), nprocs=1, join=True, *_others, **_options):
    """Replaces `torch.multiprocessing.spawn`: runs process 0 here and no others."""
    function(0, *args)
    return None if join else Joined()


def is_simulated():
    return bool(os.environ.get("MEMLAB_PLAN_SIMULATED"))


def patch_launcher(api):
    """Patches `torch.distributed.launcher.api` after its import."""
    api.launch_agent = launch


def patch_checkpoints(planner):
    """Patches `torch.distributed.checkpoint.default_planner` after its import.

    All shards are those of rank 0, so they form no whole and would fail validation.
    """
    no_state = types.SimpleNamespace(state_dict_metadata={})
    no_errors = planner._validate_global_plan([], no_state)  # A list; older versions return True.
    planner._validate_global_plan = lambda *_arguments: no_errors


def patch(torch):
    """Patches PyTorch after its import."""
    if not torch.distributed.is_available():
        return
    group = importlib.import_module("torch.distributed.distributed_c10d")
    group.rendezvous = rendezvous
    group._store_based_barrier = lambda *_arguments, **_options: None
    # Disables splits of communicators: a split does not give NCCL the number of ranks of its parts.
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
        group.BackendConfig = through_nccl(group.BackendConfig)
    if hasattr(torch.distributed, "Logger"):
        torch.distributed.Logger = without_construction_data(torch.distributed.Logger)
    importlib.import_module("torch.multiprocessing.spawn").start_processes = start_processes
    torch.multiprocessing.start_processes = start_processes


def rendezvous(_url, rank=-1, world_size=-1, **_options):
    """Returns a store that no other rank writes to."""
    rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
    world_size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
    yield importlib.import_module("torch.distributed").HashStore(), rank, world_size


def split_group(parent_pg=None, split_ranks=(), timeout=None, pg_options=None, group_desc=None, **_options):
    """Returns this rank's part of a group, as a new group."""
    group = importlib.import_module("torch.distributed.distributed_c10d")
    this = group.get_rank(parent_pg)
    own = next((ranks for ranks in split_ranks if this in ranks), None)
    if own is None:
        return group.GroupMember.NON_GROUP_MEMBER
    if parent_pg is not None:
        own = [group.get_global_rank(parent_pg, rank) for rank in own]
    return group.new_group(own, timeout=timeout, pg_options=pg_options, group_desc=group_desc)


class Objects:
    """Replaces exchanged objects: every rank receives what this rank sent.

    Otherwise kernels would have to copy the objects, and simulated kernels compute nothing.
    """

    def __init__(self, convert):
        self.convert, self.last = convert, None

    def to_tensor(self, sent, *arguments, **options):
        self.last = sent
        return self.convert(sent, *arguments, **options)

    def of_tensor(self, *_arguments, **_options):
        return self.last


def without_construction_data(logger):
    """Returns a class for DDP's logger. PyTorch's reads a number of threads from gloo, without asking whether it is gloo."""

    class Logger(logger):
        def set_construction_data_and_log(self, *_arguments):
            pass

    return Logger


def through_nccl(config):
    """Returns a class for the backends of a group, in which simulated NCCL exchanges what is on the GPU, instead of gloo.

    `Gloo` returns no gradients to DDP.
    """

    class BackendConfig(config):
        def __init__(self, backend):
            super().__init__(backend)
            if self.device_backend_map.get("cuda") == "gloo":
                self.device_backend_map["cuda"] = "nccl"

    return BackendConfig


class GlooType(type):
    """Type of `Gloo`. PyTorch checks that it got a `ProcessGroupGloo`."""

    def __instancecheck__(cls, group):
        return isinstance(group, fake_group())


class Gloo(metaclass=GlooType):
    """Replaces `ProcessGroupGloo`."""

    def __new__(cls, _store, rank, size, *_arguments, **_options):
        fake = fake_group()
        fake._set_sequence_number_for_group = lambda _group: None  # Older versions of PyTorch refuse it.
        return getattr(fake, "_create_internal", fake)(rank, size)


def fake_group():
    return importlib.import_module("torch._C._distributed_c10d").FakeProcessGroup
