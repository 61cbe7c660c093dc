"""Records Inductor's own data about the source nodes of its kernels while it generates them."""

import importlib

MODULES = ("codegen.common", "codegen.simd", "codegen.triton", "codegen.wrapper", "ir", "utils")


def recorded():
    """A dictionary that fills as Inductor generates code: for each comment above a launch, the kernel's source nodes in
    AOTAutograd's graph, as [name, path of the innermost module or None, stack trace or None]."""
    import torch._inductor.utils

    truth = {}
    original = torch._inductor.utils.get_kernel_metadata

    def recording(node_schedule, wrapper):
        comment, details = original(node_schedule, wrapper)
        nodes = truth.setdefault(comment.strip(), [])
        for node in torch._inductor.utils.aggregate_origins(node_schedule):
            if node.op == "call_function":
                modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
                path = str(list(modules.values())[-1][0]) if modules else None
                nodes.append([node.name, path, node.meta.get("stack_trace") or node.meta.get("fwd_stack_trace")])
        return comment, details

    for name in MODULES:
        module = importlib.import_module(f"torch._inductor.{name}")
        if hasattr(module, "get_kernel_metadata"):
            module.get_kernel_metadata = recording
    return truth
