"""Creates SGLang's own pools of keys and values, and prints their bytes, each rounded up as PyTorch's allocator does.

SGLang's server needs compiled kernels of a card; its pools do not. Mocks replace packages that are only imported.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from unittest import mock

import torch

ONLY_IMPORTED = ("sgl_kernel", "gguf", "IPython")


class Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module of mocks for every name in the packages."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ONLY_IMPORTED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = self.mocked
        return module

    def exec_module(self, module):
        pass

    @staticmethod
    def mocked(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def on_the_card(kept):
    """Tensors in the objects' attributes, also in lists there."""
    for value in (value for each in kept for value in vars(each).values()):
        yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, torch.Tensor))


if __name__ == "__main__":
    sys.meta_path.insert(0, Mocks())
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool

    requests = ReqToTokenPool(size=16, max_context_len=2048, device="cuda", enable_memory_saver=False)
    tokens = MHATokenToKVPool(
        size=4096,
        page_size=16,
        dtype=torch.bfloat16,
        head_num=4,
        head_dim=64,
        layer_num=3,
        device="cuda",
        enable_memory_saver=False,
    )
    storages = [part.untyped_storage() for part in on_the_card([requests, tokens]) if part.is_cuda]
    bytes_of = {storage.data_ptr(): -(-storage.nbytes() // 512) * 512 for storage in storages}
    print(json.dumps({"cache": sum(bytes_of.values()), "tensors": len(bytes_of)}), flush=True)
