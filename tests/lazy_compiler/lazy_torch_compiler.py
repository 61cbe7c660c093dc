"""Imports PyTorch's compiler at the first compilation instead of at the first optimizer.

The import takes as long as the rest of a small test program, or longer. PyTorch imports it to exclude its own functions from
compilation and to break graphs, which is useless while nothing compiles. tests/conftest.py requests this module unless
`--full` is given; lazy_torch_compiler.pth then imports it.
"""

import sys
from importlib.machinery import PathFinder, SourceFileLoader

# The statements for which these modules import the compiler, and their replacements. Lines keep their numbers.
IMPORTED = '"torch._dynamo" in __import__("sys").modules'
REPLACED = {
    "torch._compile": {'"__dynamo_disable", None)': f'"__dynamo_disable", None if {IMPORTED} else fn)'},
    "torch.optim.optimizer": {
        "        import torch._dynamo\n": "\n",
        "torch._dynamo.graph_break()": f"{IMPORTED} and torch._dynamo.graph_break()",
    },
}


class Loader(SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_source(fullname)
        for what, by in REPLACED[fullname].items():
            source = source.replace(what, by)
        return compile(source, self.path, "exec")


class Finder:
    @staticmethod
    def find_spec(name, path=None, _target=None):
        if name not in REPLACED:
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)
