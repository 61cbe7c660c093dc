"""Answers the questions of `memlab doctor` about a Python. Does not import torch: that would take seconds."""

import importlib.util
import json
import os
import platform
import runpy
import sys
import sysconfig
from importlib import metadata


def torch():
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    folder = os.path.dirname(found.origin)
    about = runpy.run_path(os.path.join(folder, "version.py"))
    return {"version": str(about["__version__"]), "cuda": about.get("cuda"), "folder": folder}


def cupti():
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        for folder in sorted(os.listdir(root), reverse=True):
            libraries = os.path.join(root, folder, "lib")
            for name in sorted(os.listdir(libraries)) if os.path.isdir(libraries) else ():
                if name.startswith("libcupti.so."):
                    yield os.path.join(libraries, name)


def memlab():
    try:
        return metadata.version("memlab")
    except metadata.PackageNotFoundError:
        return None


print(
    json.dumps(
        {
            "executable": sys.executable,
            "prefix": sys.prefix,
            "implementation": platform.python_implementation(),
            "version": list(sys.version_info[:3]),
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "torch": torch(),
            "cupti": list(cupti()),
            "memlab": memlab(),
        }
    )
)
