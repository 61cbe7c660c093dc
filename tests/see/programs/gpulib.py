"""A library that allocates through memlab's hook, as PyTorch does. Needs neither a GPU nor PyTorch."""

import ctypes
import itertools

hook = ctypes.CDLL(None)._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
hook.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint16)
hook.restype = None
CUDA_DEVICE_0 = 0x0001
addresses = itertools.count(1 << 32, 1 << 24)


def allocate(size):
    hook(next(addresses), size, 0, 0, CUDA_DEVICE_0)


class Tensor:
    def __deepcopy__(self, _):
        allocate(4096)
