"""Runs copies and a launch under CUPTI's Activity and Callback API, without PyTorch. Prints CUPTI's records, as JSON."""

import ctypes
import json
import struct
import threading
import time

MIB = 1 << 20
MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL, EXTERNAL = 1, 2, 4, 5, 10, 39
CUSTOM = 3

cupti = ctypes.CDLL("libcupti.so.13")
runtime = ctypes.CDLL("libsimgpu_cudart.so")
driver = ctypes.CDLL("libcuda.so.1")

REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)

buffers, returned_on, records, calls = {}, [], [], []


@REQUEST
def request(start, size, most):
    buffer = ctypes.create_string_buffer(1024)
    buffers[ctypes.addressof(buffer)] = buffer
    start[0], size[0], most[0] = ctypes.addressof(buffer), len(buffer), 0


@COMPLETE
def complete(_context, _stream, start, _size, valid):
    record = ctypes.c_void_p()
    while cupti.cuptiActivityGetNextRecord(ctypes.c_void_p(start), ctypes.c_size_t(valid), ctypes.byref(record)) == 0:
        records.append(read(record.value))
    returned_on.append(threading.get_native_id())


def read(address):
    kind = ctypes.c_uint32.from_address(address).value
    raw = ctypes.string_at(address, {MEMCPY: 96, MEMSET: 88, KERNEL: 224, EXTERNAL: 24}.get(kind, 40))
    if kind == MEMCPY:
        copy, source, target, is_async, size, start, end = struct.unpack_from("<4B3Q", raw, 4)
        about = {"copy": copy, "from": source, "to": target, "async": is_async, "bytes": size, "took": end - start}
        about["correlation"] = struct.unpack_from("I", raw, 44)[0]
    elif kind == MEMSET:
        about = {"bytes": struct.unpack_from("Q", raw, 8)[0], "correlation": struct.unpack_from("I", raw, 44)[0]}
    elif kind == KERNEL:
        about = {"grid": struct.unpack_from("3I", raw, 52), "correlation": struct.unpack_from("I", raw, 92)[0]}
        about["name"] = ctypes.string_at(struct.unpack_from("Q", raw, 104)[0]).decode()
    elif kind == EXTERNAL:
        about = {"id": struct.unpack_from("Q", raw, 8)[0], "correlation": struct.unpack_from("I", raw, 16)[0]}
    else:
        about = {"function": name(kind, struct.unpack_from("I", raw, 4)[0])}
        about["correlation"] = struct.unpack_from("I", raw, 32)[0]
    return {"kind": kind, **about}


def name(kind, callback):
    text = ctypes.c_char_p()
    assert cupti.cuptiGetCallbackName(2 if kind == RUNTIME else 1, callback, ctypes.byref(text)) == 0
    return text.value.decode()


@CALLBACK
def called(_own, domain, callback, data):
    site = ctypes.c_uint32.from_address(data).value
    calls.append([domain, callback, site, ctypes.c_uint32.from_address(data + 64).value])


def done(status):
    assert status == 0, status


handle, other = ctypes.c_void_p(), ctypes.c_void_p()
done(cupti.cuptiSubscribe(ctypes.byref(handle), called, None))
second = cupti.cuptiSubscribe(ctypes.byref(other), called, None)
text = ctypes.c_char_p()
done(cupti.cuptiGetResultString(second, ctypes.byref(text)))
done(cupti.cuptiEnableCallback(1, handle, 2, 31))  # cudaMemcpy
done(cupti.cuptiEnableCallback(1, handle, 1, 276))  # cuMemcpyHtoD_v2
done(cupti.cuptiActivityRegisterCallbacks(request, complete))

device, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
done(runtime.cudaMalloc(ctypes.byref(device), ctypes.c_size_t(MIB)))
done(driver.cuModuleLoadData(ctypes.byref(module), None))
done(driver.cuModuleGetFunction(ctypes.byref(function), module, b"a_kernel"))
host = ctypes.create_string_buffer(MIB)
for kind in (MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL, EXTERNAL):
    done(cupti.cuptiActivityEnable(kind))

done(cupti.cuptiActivityPushExternalCorrelationId(CUSTOM, ctypes.c_uint64(77)))
done(runtime.cudaMemcpy(device, host, ctypes.c_size_t(MIB), 1))
done(cupti.cuptiActivityPopExternalCorrelationId(CUSTOM, None))
done(runtime.cudaMemsetAsync(device, 0, ctypes.c_size_t(4096), None))
done(runtime.cudaMemcpyAsync(host, device, ctypes.c_size_t(MIB // 2), 2, None))
done(driver.cuLaunchKernel(function, 5, 2, 1, 128, 1, 1, 0, None, None, None))
done(cupti.cuptiActivityFlushAll(0))
first, returned = len(records), len(returned_on)

for _ in range(20):
    done(runtime.cudaMemsetAsync(device, 0, ctypes.c_size_t(4096), None))
while len(returned_on) == returned:  # Full buffers return without a flush.
    time.sleep(0.001)
done(cupti.cuptiUnsubscribe(handle))
done(cupti.cuptiFinalize())
done(runtime.cudaMemsetAsync(device, 0, ctypes.c_size_t(4096), None))
done(cupti.cuptiActivityFlushAll(1))


def later():
    return sum(record["kind"] == MEMSET for record in records[first:])


deadline = time.monotonic() + 600
while later() < 20 and time.monotonic() < deadline:  # CUPTI's thread may still deliver a buffer.
    time.sleep(0.001)
print(
    json.dumps(
        {
            "second": [second, text.value.decode()],
            "calls": calls,
            "records": records[:first],
            "later": later(),
            "other_threads": sum(thread != threading.get_native_id() for thread in returned_on),
        }
    )
)
