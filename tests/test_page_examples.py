"""The examples in the docstrings of the public functions run, without a GPU, and say what they say there."""

import doctest

import memlab
import pytest


@pytest.mark.parametrize("name", memlab.__all__)
def test_examples(name):
    # GIVEN a public name; WHEN its docstring's example is run, THEN it prints what stands there
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(memlab, name), name, globs={})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
