"""The namespaces of the package have each public name once, and import its module at the first use."""

import memlab as package
import pytest
from conftest import ROOT

LAZY = ("batches", "compat", "paging", "recording")
NAMESPACES = (*LAZY, "inspection")


def test_each_public_name_is_in_one_namespace():
    # GIVEN the public names that are not modules
    modules = {*NAMESPACES, "allocator", "training_warnings"}
    named = [name for namespace in NAMESPACES for name in getattr(package, namespace).__all__]
    # THEN each is in one namespace, except those that only inspection has
    own = set(named) - set(package.__all__)
    assert own == {"Peak", "Report", "SequenceRow", "Setting", "StepSequence"}
    assert sorted(set(named) - own - modules) == sorted(set(package.__all__) - modules)
    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", LAZY)
def test_a_namespace_has_what_memlab_has(name):
    # GIVEN a namespace; WHEN its names are accessed, THEN they are memlab's
    namespace = getattr(package, name)
    assert all(getattr(namespace, one) is getattr(package, one) for one in namespace.__all__)
    assert set(namespace.__all__) <= set(dir(namespace))
    # AND other names raise an AttributeError, as in any module
    with pytest.raises(AttributeError, match=f"module 'memlab.{name}' has no attribute 'nothing'"):
        _ = namespace.nothing


def test_importing_a_namespace_does_not_import_torch(memlab):
    # GIVEN a program that imports namespaces; WHEN it uses names that need no PyTorch
    program = memlab.folder / "namespaces.py"
    imports = "".join(f"import memlab.{name}\n" for name in LAZY)
    used = "from memlab.batches import Feeder\nfrom memlab.compat import LineProfiler\nfrom memlab.recording import watch\n"
    program.write_text(f"import sys\n{imports}{used}sys.exit('torch' in sys.modules)\n")
    # THEN PyTorch is not imported
    assert memlab.python(program, preload=False, fresh=True, env={"PYTHONPATH": ROOT / "python"}).code == 0
