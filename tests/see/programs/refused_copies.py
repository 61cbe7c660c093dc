"""Makes the kernel refuse copies of the process in which memlab searches, as if memory may not be overcommitted."""

import ctypes
import errno
import struct

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOMEM
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CLONE = 56  # On x86-64. `fork` and threads pass flags to it.
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


def refuse_copies():
    """Refuses `clone` without flags, in all threads that this thread starts, and in itself."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 0),  # The system call.
            (_IS_EQUAL, 0, 3, _CLONE),
            (_LOAD, 0, 0, 16),  # Its first argument.
            (_IS_EQUAL, 0, 1, 0),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    table = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0, ctypes.get_errno()
    assert library.prctl(_SET_SECCOMP, _FILTER, table, 0, 0) == 0, ctypes.get_errno()
