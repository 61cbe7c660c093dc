/* Measures memlab's hooks in a running program: PyTorch's code and data use the processor's caches before each call.
 *
 * Preloaded before libmemlab.so, so that PyTorch calls these functions, which call memlab's and time them. Without
 * libmemlab.so, they call PyTorch's own, whose time is to be subtracted. `benches/inside.py` runs it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <x86intrin.h>

#include "clock.h"

typedef void (*report_t)(void *, int64_t, size_t, size_t, uint16_t);
typedef uint64_t (*number_t)(void);

enum { NODE, ALLOCATED, FREED, KINDS, MOST = 1 << 20 };

static uint32_t ticks[KINDS][MOST];
static atomic_size_t taken[KINDS];
static uint64_t start_ticks;
static double start;

static void note(int kind, uint64_t before) {
    size_t at = atomic_fetch_add_explicit(&taken[kind], 1, memory_order_relaxed);
    if (at < MOST)
        ticks[kind][at] = (uint32_t)(__rdtsc() - before);
}

/* Returns the function behind this one: memlab's, or that of the PyTorch library that defines it. */
static void *behind(const char *symbol, const char *library) {
    void *found = dlsym(RTLD_NEXT, symbol);
    void *handle = found ? NULL : dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? dlsym(handle, symbol) : found;
}

static report_t report(void) {
    static report_t found;
    if (!found)
        found = (report_t)behind("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", "libc10.so");
    return found;
}

static number_t number(void) {
    static number_t found;
    if (!found)
        found = (number_t)behind("_ZN2at15sequence_number17get_and_incrementEv", "libtorch_cpu.so");
    return found;
}

void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *block, int64_t size, size_t allocated, size_t reserved,
                                                          uint16_t device) {
    report_t next = report();
    uint64_t before = __rdtsc();
    next(block, size, allocated, reserved, device);
    note(size < 0 ? FREED : ALLOCATED, before);
}

uint64_t _ZN2at15sequence_number17get_and_incrementEv(void) {
    number_t next = number();
    uint64_t before = __rdtsc();
    uint64_t got = next();
    note(NODE, before);
    return got;
}

/* Resets the measurements. */
void inside_begin(void) {
    for (int kind = NODE; kind < KINDS; kind++)
        atomic_store(&taken[kind], 0);
    start = now();
    start_ticks = __rdtsc();
}

static int ascending(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* Writes count, median and mean nanoseconds of each kind. The mean leaves out the highest percent, in which the thread was
 * interrupted. */
void inside_end(double found[KINDS][3]) {
    double tick = (now() - start) / (double)(__rdtsc() - start_ticks);
    for (int kind = NODE; kind < KINDS; kind++) {
        size_t all = atomic_load(&taken[kind]), count = all < MOST ? all : MOST, kept = count - count / 100;
        double sum = 0;
        qsort(ticks[kind], count, sizeof **ticks, ascending);
        for (size_t i = 0; i < kept; i++)
            sum += ticks[kind][i];
        found[kind][0] = (double)all;
        found[kind][1] = count ? ticks[kind][count / 2] * tick : 0;
        found[kind][2] = kept ? sum / (double)kept * tick : 0;
    }
}
