"""Runs a program, `patient.py PROGRAM`, and ends its sleep once memlab has sampled the card."""

import ctypes
import runpy
import sys
import time

import recording
import torch


def nvml_used():
    """Bytes in use, including the driver's own. An NVML without the second version reports these."""
    nvml, card, words = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(card, words) == 0
    return words[2]


def sleep(_):
    free, total = torch.cuda.mem_get_info()
    recording.until(lambda: recording.used()[-1:] in ([total - free], [nvml_used()]), "the card is sampled")


time.sleep = sleep
runpy.run_path(sys.argv[1], run_name="__main__")
