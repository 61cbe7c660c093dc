"""Runs Python programs in forked children of a process that has imported PyTorch: `prefork_server.py FD`.

Importing PyTorch takes two thirds of the time of a small test program. `FD` is a socket of messages. A request is JSON,
`{"arguments": [PROGRAM, …], "directory": …, "environment": {NAME: VALUE}}`, and carries three descriptors: the program's
standard input, output and error. Two answers follow: the child's pid, and its exit code as `subprocess` counts it.

A child has what a started interpreter has: a new `__main__`, `sys.argv`, `sys.path`, `os.environ` and standard streams. Two
things differ: its /proc/self/cmdline is the server's, and a frame of this file lies below the program's.
"""

import gc
import json
import os
import socket
import sys
import types

import torch  # noqa: F401

REQUEST_BYTES = 1 << 20


def become(request, descriptors):
    """Gives this child the streams, the directory, the environment and the arguments of a request."""
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    added = [part for part in request["environment"].get("PYTHONPATH", "").split(":") if part]
    sys.path[:1] = [os.path.dirname(os.path.realpath(sys.argv[0])), *added]
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def serve(channel):
    """Forks a child for each request. Returns the request in the child, and None in the server once the client has gone."""
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
            become(json.loads(data), descriptors)
            return sys.argv[0]
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        channel.send(str(os.waitstatus_to_exitcode(status)).encode())


program = serve(socket.socket(fileno=int(sys.argv[1])))
if program:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=program, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(program, "rb") as file:
        code = compile(file.read(), program, "exec")
    exec(code, main.__dict__)
