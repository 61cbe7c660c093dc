"""Offloads and restores its own memory with the C functions of memlab.h."""

import ctypes
import json
import threading

import gate
import torch

memlab = ctypes.CDLL(None)
memlab.memlab_status.restype = ctypes.c_size_t
memlab.memlab_status.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
memlab.memlab_offload.argtypes = [ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t]
memlab.memlab_restore.argtypes = [ctypes.c_double, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]


def state():
    text = ctypes.create_string_buffer(memlab.memlab_status(None, 0) + 64)
    memlab.memlab_status(text, len(text))
    return json.loads(text.value)["move"]["state"]


x = torch.arange(1 << 20).cuda()
error = ctypes.create_string_buffer(200)
assert memlab.memlab_restore(1.0, 0, error, len(error)) == -1 and b"nothing" in error.value, error.value
assert memlab.memlab_offload(600.0, error, len(error)) == 0, error.value
assert state() == "offloaded"
assert memlab.memlab_offload(10.0, error, 8) == -1 and len(error.value) == 7
# Another thread blocks until this one has restored the memory.
waited = []
thread = threading.Thread(target=lambda: waited.append(int(x[12345])))
thread.start()
assert gate.waits(thread)
assert not waited
assert memlab.memlab_restore(600.0, 1, error, len(error)) == 0, error.value
thread.join()
assert state() == "resident" and waited == [12345] and bool((x.cpu() == torch.arange(1 << 20)).all())
print("done")
