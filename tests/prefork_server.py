"""Runs Python programs in forked children of a process that has imported PyTorch: `prefork_server.py FD`.

Importing PyTorch takes two thirds of the time of a small test program. `FD` is a socket of messages. A request is JSON,
`{"arguments": [those of python], "directory": …, "environment": {NAME: VALUE}}`, with three descriptors: the program's
standard input, output and error. Two answers follow: the child's pid, and its exit code in `subprocess`'s convention.

A child has the state of a fresh interpreter: a new `__main__`, `sys.argv`, `sys.path`, `os.environ` and standard streams. It
differs in two ways: its /proc/self/cmdline is the server's, and a frame of this file lies below the program's.
"""

import ctypes
import gc
import json
import os
import runpy
import socket
import sys
import types
import warnings

import torch  # noqa: F401

REQUEST_BYTES = 1 << 20


def become(request, descriptors):
    """Gives this child the streams, the directory and the environment of a request."""
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(request["directory"])
    environment = request["environment"]
    os.environ.update(environment)
    sys.path[1:1] = [part for part in environment.get("PYTHONPATH", "").split(":") if part]
    warnings._processoptions(environment.get("PYTHONWARNINGS", "").split(",") if "PYTHONWARNINGS" in environment else [])
    memlab = ctypes.CDLL(None)
    if "MEMLAB_OUTPUT" in environment and hasattr(memlab, "memlab_output"):
        memlab.memlab_output(environment["MEMLAB_OUTPUT"].encode(), None, 0)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def serve(channel):
    """Forks a child for each request. Returns its arguments in the child, None in the server once the client has gone."""
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 3)
        if not data:
            return None
        child = os.fork()
        if child == 0:
            channel.close()
            gc.unfreeze()
            request = json.loads(data)
            become(request, descriptors)
            return request["arguments"]
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        channel.send(str(os.waitstatus_to_exitcode(status)).encode())


arguments = serve(socket.socket(fileno=int(sys.argv[1])))
if arguments:
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __cached__=None)
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.realpath(arguments[0]))
        main.__file__ = arguments[0]
        with open(arguments[0], "rb") as file:
            code = compile(file.read(), arguments[0], "exec")
        exec(code, main.__dict__)
