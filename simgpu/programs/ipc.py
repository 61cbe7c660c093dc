"""GPU tensors shared between processes."""

import torch
import torch.multiprocessing as mp

MIB = 1 << 20


def child(inbox, outbox, free_before):
    shared = inbox.get()
    # THEN the bytes are the parent's, and the GPU holds only one more context
    values = shared.cpu()
    free = torch.cuda.mem_get_info()[0]
    shared.copy_(values * 2)
    torch.cuda.synchronize()
    outbox.put((values.sum().item(), free_before - free))
    del shared
    inbox.get()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    inbox, outbox = mp.Queue(), mp.Queue()
    # GIVEN a tensor on the GPU
    tensor = torch.arange(1 << 20, dtype=torch.float64).cuda()
    free = torch.cuda.mem_get_info()[0]
    process = mp.Process(target=child, args=(inbox, outbox, free))
    process.start()
    # WHEN another process receives it
    inbox.put(tensor)
    total, taken = outbox.get(timeout=1500)
    assert total == sum(range(1 << 20)), total
    assert 256 * MIB <= taken <= 300 * MIB, taken
    # AND the parent sees what the child wrote
    assert torch.equal(tensor.cpu(), torch.arange(1 << 20, dtype=torch.float64) * 2)
    inbox.put(None)
    process.join(1500)
    assert process.exitcode == 0
    # AND its context ends with it
    assert torch.cuda.mem_get_info()[0] == free
    torch.cuda.ipc_collect()
    print("ok")
