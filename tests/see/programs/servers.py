"""A server with a separate engine process. Files and functions that allocate are named as in vLLM and SGLang.

The engine's process allocates weights, key-value caches and workspaces, prints their bytes, and ends while it holds them.
"""

import json
import multiprocessing
import sys

# package: [(file, class or none, function, MiB, purpose)], as in vLLM 0.33 and SGLang 0.5.
ALLOCATIONS = {
    "vllm": [
        ("v1/worker/utils.py", None, "allocate_kv_cache", 24, "kv_cache"),
        ("v1/attention/backends/flashinfer.py", "FlashInferMetadataBuilder", "_get_workspace_buffer", 6, "workspace"),
        ("v1/worker/workspace.py", "WorkspaceManager", "_ensure_workspace_size", 3, "workspace"),
        ("distributed/device_communicators/custom_all_reduce.py", "CustomAllreduce", "__init__", 8, "communication"),
    ],
    "sglang": [
        ("srt/mem_cache/memory_pool.py", "ReqToTokenPool", "__init__", 2, "kv_cache"),
        ("srt/mem_cache/memory_pool.py", "MHATokenToKVPool", "_create_buffers", 40, "kv_cache"),
        ("srt/layers/attention/flashinfer_backend.py", "FlashInferAttnBackend", "__init__", 12, "workspace"),
        ("srt/mem_cache/memory_pool.py", "HybridReqToTokenPool", "alloc", 5, None),
    ],
}


def function(package, file, owner, name):
    """The function of that file, class and name. It returns a tensor, or has assigned `self.made`."""
    lines = [f"def {name}(self, mib):", "    self.made = torch.zeros(mib << 20, dtype=torch.int8, device='cuda')"]
    if owner:
        lines = [f"class {owner}:"] + [f"    {line}" for line in lines]
    space = {"torch": __import__("torch")}
    exec(compile("\n".join(lines), f"/opt/site-packages/{package}/{file}", "exec"), space)
    return getattr(space[owner], name) if owner else space[name]


class Holder:
    made = None


def engine(package):
    import torch

    weights = torch.nn.Linear(256, 256, bias=False, device="cuda")
    held, kept = {}, [weights]
    for file, owner, name, mib, purpose in ALLOCATIONS[package]:
        holder = Holder()
        function(package, file, owner, name)(holder, mib)
        kept.append(holder.made)
        held[purpose] = held.get(purpose, 0) + (mib << 20)
    with torch.no_grad():
        weights(torch.zeros(1, 256, device="cuda"))
    print(json.dumps({purpose: nbytes for purpose, nbytes in held.items() if purpose}), flush=True)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=engine, args=(sys.argv[1],), name="EngineCore")
    child.start()
    child.join()
    sys.exit(child.exitcode)
