"""Code in the sentences of findings, cures of holders, advice after errors, and plans: it is marked, and runs as printed.

The test reads the texts from the sources, so that a new piece of code is found without being listed here.
"""

import json
import re

import pytest
from conftest import PYTHON, ROOT

SOURCES = [
    "holders/src/describe.rs",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "viewer/base/src/findings").glob("*.rs")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "viewer/report/src/plan").rglob("*.rs")),
    "viewer/report/src/report/advice.rs",
]
# A call that is not a method of something unnamed, as in `.item()`; a statement.
CODE = re.compile(r"(?<![.\w])[A-Za-z_][\w.]*\(|\bdel [\w{]|^\{\w+\}\.|[\w}] = [\w{]")

# Runs pieces of code, each with the name of the program that a cure would print, which stands for objects of several kinds.
RUN = """
import functools, gc, importlib, json, sys
import torch

class Known(dict):
    def __missing__(self, name):
        places = {"TrainingArguments": "transformers", "Trainer": "lightning", "Accelerator": "accelerate"}
        if name not in places:
            raise KeyError(name)
        return getattr(importlib.import_module(places[name]), name)

def objects():
    yield [torch.ones(2, device="cuda")]
    yield torch.ones(2, device="cuda", requires_grad=True) * 2
    yield functools.cache(abs)
    yield (number for number in range(2))

def error_of(code):
    if "accelerate" in sys.modules:
        sys.modules["accelerate"].state.AcceleratorState._reset_state(reset_partial_state=True)
    for kept in objects():
        try:
            exec(code, Known(torch=torch, gc=gc, kept=kept, __builtins__=__builtins__))
            return None
        except Exception as error:
            found = repr(error)
    return found

errors = {code: error_of(code) for code in json.loads(sys.argv[1])}
print(json.dumps({code: error for code, error in errors.items() if error}))
"""


def literals(source):
    """The string literals of a Rust source, without its tests and comments."""
    text = re.sub(r"^\s*//.*$", "", source.split("#[cfg(test)]")[0], flags=re.MULTILINE)
    for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', text, flags=re.DOTALL):
        literal = re.sub(r"\\\n\s*", "", literal).replace('\\"', '"').replace("\\n", "\n")
        yield literal


def code_in(literal):
    """The code of a literal, and the text around it. Code is in backticks, or a whole literal that begins with a name."""
    marked = [code for code in re.findall(r"`([^`]*)`", literal) if not code.startswith("memlab ")]  # A command.
    if re.match(r"\{name\}\S* ?=? ?\S*$", literal) and CODE.search(literal):
        return [literal], ""
    return marked, re.sub(r"`[^`]*`", "", literal)


def filled(code):
    """The code with a name in place of each placeholder."""
    return re.sub(r"\{\w*\}", "kept", code)


def test_code_in_sentences_is_marked():
    # GIVEN the texts of findings, cures and plans; THEN code in them is in backticks
    unmarked = []
    for source in SOURCES:
        for literal in literals((ROOT / source).read_text()):
            _, text = code_in(literal)
            unmarked += [(source, literal)] if CODE.search(text) else []
    assert not unmarked


def test_code_in_sentences_runs_as_printed(memlab):
    for package in ("transformers", "lightning", "accelerate"):
        pytest.importorskip(package)
    # GIVEN the code in these texts
    texts = [text for source in SOURCES for text in literals((ROOT / source).read_text())]
    codes = sorted({filled(code) for text in texts for code in code_in(text)[0]} - {"kept"})
    assert any("eval_accumulation_steps" in code for code in codes) and "kept.cache_clear()" in codes
    # THEN all of it runs, with no names but those of modules, of frameworks, and of what a holder is called
    done = memlab.run(PYTHON, "-c", RUN, json.dumps(codes), preload=False)
    assert done.code == 0, done.errors
    assert json.loads(done.output.splitlines()[-1]) == {}
