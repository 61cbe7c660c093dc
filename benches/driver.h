// Shared by the measurements that call the driver themselves.
#pragma once
#define _GNU_SOURCE
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define MIB (1ul << 20)
#define GIB (1ul << 30)

// In seconds.
static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static inline void check(CUresult code, const char *what) {
    if (code) {
        const char *name = "?";
        cuGetErrorName(code, &name);
        printf("%s: %s\n", what, name);
        exit(1);
    }
}

// Makes the first device's primary context current, and returns it.
static inline CUcontext use_first_device(void) {
    CUdevice device;
    CUcontext context;
    check(cuInit(0), "init");
    check(cuDeviceGet(&device, 0), "device");
    check(cuDevicePrimaryCtxRetain(&context, device), "context");
    check(cuCtxSetCurrent(context), "context");
    return context;
}

// Maps memory aligned to huge pages, not touched yet.
static inline char *map_huge_pages(size_t bytes) {
    char *memory = mmap(NULL, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    char *aligned = (char *)(((size_t)memory + 2 * MIB - 1) & ~(2 * MIB - 1));
    madvise(aligned, bytes, MADV_HUGEPAGE);
    return aligned;
}
