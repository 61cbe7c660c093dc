"""Runs at the start of a Python program whose modules `memlab run --fit` pages, as `sitecustomize`."""

import sys

import _memlab_imports as imports
import _memlab_paging as paging


def imported(torch):
    when_imported.calls.update(paging.start(torch))


when_imported = imports.WhenImported({"torch": imported})

if __name__ == "sitecustomize":
    sys.meta_path.insert(0, when_imported)
    imports.run_other_sitecustomize()
