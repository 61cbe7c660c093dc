"""The examples in the docstrings of the public functions run without a GPU and print the documented output."""

import doctest

import memlab
import pytest


@pytest.mark.parametrize("name", memlab.__all__)
def test_examples(name):
    # GIVEN a public name; WHEN its docstring's example runs, THEN it prints the documented output
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(memlab, name), name, globs={})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
