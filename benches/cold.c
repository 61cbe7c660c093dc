/* Measures the cost of an event after other work has evicted the processor's caches, as PyTorch's does between two events.
 *
 * `benches/cold.py` calls `measure` from inside a model's forward, under LD_PRELOAD=libmemlab.so. It calls memlab's hooks on
 * PyTorch: an autograd node is made, a block is allocated, a block is freed. Before each call it reads `evicted` bytes at
 * random. The results are the medians, in nanoseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

#include "clock.h"

typedef void (*report_t)(void *, int64_t, size_t, size_t, uint16_t);
typedef uint64_t (*number_t)(void);

enum { NODE, ALLOCATED, FREED, KINDS, LINE = 64, CUDA_DEVICE_0 = 0x0001 };

static int ascending(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void evict(volatile char *memory, size_t bytes) {
    static uint64_t random = 88172645463325252u;
    for (size_t read = 0; read < bytes; read += LINE) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        (void)memory[random % bytes];
    }
}

/* Fills `nanoseconds` with the medians of `rounds` events of each kind. Returns 0 if the hooks are missing. */
int measure(int rounds, size_t evicted, double nanoseconds[KINDS]) {
    report_t report = (report_t)dlsym(RTLD_DEFAULT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    number_t number = (number_t)dlsym(RTLD_DEFAULT, "_ZN2at15sequence_number17get_and_incrementEv");
    uint64_t *ticks = malloc(sizeof *ticks * (size_t)rounds * KINDS);
    char *memory = malloc(evicted + 1);
    if (!report || !number || !ticks || !memory)
        return 0;
    memset(memory, 1, evicted + 1);
    double start = now();
    uint64_t start_ticks = __rdtsc();
    for (int round = 0; round < rounds; round++)
        for (int kind = NODE; kind < KINDS; kind++) {
            evict(memory, evicted);
            _mm_lfence();
            uint64_t before = __rdtsc();
            _mm_lfence();
            if (kind == NODE)
                number();
            else
                report((void *)(0x7f0000000000 + 512 * (uintptr_t)(round % 64)), kind == ALLOCATED ? 512 : -512, 0, 0,
                       CUDA_DEVICE_0);
            _mm_lfence();
            ticks[kind * rounds + round] = __rdtsc() - before;
        }
    double tick = (now() - start) / (double)(__rdtsc() - start_ticks);
    for (int kind = NODE; kind < KINDS; kind++) {
        qsort(ticks + kind * rounds, (size_t)rounds, sizeof *ticks, ascending);
        nanoseconds[kind] = (double)ticks[kind * rounds + rounds / 2] * tick;
    }
    free(ticks), free(memory);
    return 1;
}
