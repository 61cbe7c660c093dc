"""Arrays of a library that PyTorch does not know: without PyTorch, beside it, and in one large pool like JAX's."""

import ctypes
import sys

way, library = sys.argv[1:]
arrays = ctypes.CDLL(library)
arrays.take.restype = ctypes.c_ulong
arrays.take.argtypes = (ctypes.c_size_t,)
arrays.give_back.argtypes = (ctypes.c_ulong,)

if way == "beside":
    import torch

    class Rows(torch.nn.Module):
        def forward(self, x):
            self.array = arrays.take(24 << 20)  # in a layer
            return x * 2

    rows = Rows()
    x = torch.ones(1 << 20, device="cuda")
    doubled = rows(x)
    print(torch.cuda.memory_allocated())
elif way == "pool":
    assert arrays.begin() == 0
    pool = arrays.take(1536 << 20)
    assert pool and arrays.give_back(pool) == 0  # As XLA does when the program ends.
else:
    assert arrays.begin() == 0
    kept = arrays.take(64 << 20)  # kept
    gone = arrays.take(96 << 20)  # gone
    assert arrays.give_back(gone) == 0
