"""Reports the memory that PyTorch's allocator holds when memlab is loaded into a running program, such as a notebook.

Embedded in libmemlab.so and called by the agent when it starts.
"""


def look(native, torch):
    """Reports segments and blocks. `native` has found_segment(device, address, bytes) and found_block with the same
    arguments."""
    cuda = torch.cuda
    # The asynchronous allocator keeps no list, and raises.
    if not cuda.is_initialized() or cuda.get_allocator_backend() != "native":
        return
    for segment in cuda.memory_snapshot():
        device, address = segment["device"], segment["address"]
        native.found_segment(device, address, segment["total_size"])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                native.found_block(device, address, block["size"])
            address += block["size"]  # Blocks follow each other without gaps; PyTorch 2.1 does not give their addresses.
