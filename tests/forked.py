"""Runs programs one after the other, each in a separate process that inherits their imports.

`forked.py RUNS`: JSON, `[[ENVIRONMENT, [PROGRAM, ARGUMENT, …]], …]`. Prints each program's output, followed by U+001E and a
line end.
"""

import json
import os
import runpy
import sys

import torch  # noqa: F401 - all of them do

runs = json.loads(sys.argv[1])
for program in dict.fromkeys(arguments[0] for _, arguments in runs):
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="imported")
for environment, arguments in runs:
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")
        sys.exit()
    _, status = os.waitpid(child, 0)
    print(end="\x1e\n", flush=True)
    if status:
        sys.exit(f"{arguments} with {environment} ended with {status}")
