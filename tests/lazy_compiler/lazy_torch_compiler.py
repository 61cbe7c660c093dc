"""PyTorch's compiler is imported when something is compiled, and not as soon as a program makes an optimizer.

Importing it takes as long as a small test program does otherwise, or longer. PyTorch does so to exclude functions of its own
from compilation and to break graphs, which is of no use as long as nothing compiles. tests/conftest.py asks for this unless
`--full` is given, and lazy_torch_compiler.pth imports it where it is asked for.
"""

import sys
from importlib.machinery import PathFinder, SourceFileLoader

# What these modules import the compiler for, and what that becomes. Lines keep their numbers.
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
