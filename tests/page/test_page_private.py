"""The table of PyTorch's private names that memlab uses is right for the installed version, and complete."""

import ast
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from memlab._paging.torch_private import TABLE

PACKAGE = ROOT / "python" / "memlab"
FILES = [file for file in PACKAGE.rglob("*.py") if file.name != "torch_private.py"]
VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
SOURCE = "".join(file.read_text() for file in PACKAGE.rglob("*.py"))
# Private attributes of memlab, and two documented ones of CPython.
ALLOWED = {*re.findall(r"\b(?:self|def|class)[. ](_\w+)", SOURCE), "_getframe", "_fields"}


def exists(expression):
    try:
        eval(expression, {"torch": torch})
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_table_matches_this_version(row):
    # GIVEN a row with the versions that have a name; THEN the installed version has it if the row lists that version
    if row.needs_cuda and torch.version.cuda is None:
        pytest.skip("PyTorch was built without CUDA")
    assert exists(row.name) == (row.first <= VERSION and (row.last is None or row.last >= VERSION))
    assert row.used_for and row.without


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_private_names_are_in_one_file(file):
    # GIVEN a file of the package; THEN its private imports and attributes are memlab's own
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("torch"):
            named = [*node.module.split("."), *(alias.name for alias in node.names)]
            assert not [name for name in named if name.startswith("_")], node.lineno
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            assert node.attr in ALLOWED, f"line {node.lineno}: {node.attr}"


WITHOUT_A_COMPILER = """
import sys, memlab, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)).eval()
paged = memlab.page(model, device="cpu", budget="min")
with torch.inference_mode():
    for _ in range(3):
        paged(torch.ones(2, 8))
print("torch._dynamo" in sys.modules)
"""


def test_no_compiler_is_imported():
    # GIVEN a program that compiles nothing; WHEN it pages a model
    command = [sys.executable, "-c", WITHOUT_A_COMPILER]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # THEN PyTorch's compiler, which takes seconds to import, is not imported
    assert (run.returncode, run.stdout) == (0, "False\n"), run.stderr
