"""Arrays of a library beside PyTorch: prints the library's own figures of its driver memory as JSON.

library_arrays.py cupy|numba|jax
"""

import json
import sys

MIB = 1 << 20


def cupy():
    import cupy

    kept = [cupy.zeros(100 * MIB, dtype=cupy.uint8)]  # kept
    gone = cupy.zeros(300 * MIB, dtype=cupy.uint8)
    del gone  # CuPy's pool keeps its memory.
    kept.append(cupy.random.random(8 * MIB // 8))
    cupy.cuda.Device().synchronize()
    return kept, cupy.get_default_memory_pool().total_bytes()


def numba():
    import numpy
    from numba import cuda

    kept = [cuda.device_array(200 * MIB, dtype=numpy.uint8)]  # kept
    cuda.synchronize()
    return kept, 200 * MIB


def jax():
    import jax
    import jax.numpy

    kept = [jax.numpy.zeros((512, MIB), dtype=jax.numpy.uint8)]  # kept
    kept[0].block_until_ready()
    return kept, jax.devices()[0].memory_stats()["pool_bytes"]


kept, held = {"cupy": cupy, "numba": numba, "jax": jax}[sys.argv[1]]()
print(json.dumps(held))
