/* Measures the cost of one event: calls memlab's hook on PyTorch's block report in a loop, without Python.
 *
 * `make bench BENCH=append` builds it and runs it under LD_PRELOAD=libmemlab.so. Prints nanoseconds per event for one thread
 * and, in the same run, for four. Allocations and frees of 512 bytes alternate at 1024 addresses. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"

/* c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device): defined by the preloaded library. */
extern void report(void *, int64_t, size_t, size_t, uint16_t)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
#pragma weak report

enum { EVENTS = 2000000, CUDA_DEVICE_0 = 0x0001 };

static void *work(void *argument) {
    uintptr_t base = (uintptr_t)argument;
    for (int i = 0; i < EVENTS; i++) {
        int64_t size = (i / 1024) % 2 ? -512 : 512;
        report((void *)(base + (uintptr_t)(i % 1024) * 512), size, 0, 0, CUDA_DEVICE_0);
    }
    return NULL;
}

static double run(int threads) {
    pthread_t ids[4];
    double start = now();
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, work, (void *)((uintptr_t)(i + 1) << 40));
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return (now() - start) / ((double)EVENTS * threads);
}

int main(void) {
    if (!report) {
        fprintf(stderr, "append: run me with LD_PRELOAD=libmemlab.so\n");
        return 2;
    }
    report((void *)1, 512, 0, 0, CUDA_DEVICE_0); /* Creates the trace, outside the measured time. */
    double one = run(1), four = run(4);
    printf("append: %.0f ns an event on one thread, %.0f ns of wall time on four\n", one, four);
    printf("= 1 thread: %.0f ns\n= 4 threads, wall time: %.0f ns\n", one, four);
    return 0;
}
