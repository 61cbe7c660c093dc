/* Measures the cost of the open gate: calls cuLaunchKernel in a loop. The driver refuses each call at once (no function), so
 * the measurement contains little else. `make bench BENCH=gate` runs it with and without MEMLAB_OFFLOAD=1. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"

typedef int launch_t(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "gate: %s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    launch_t *launch = (launch_t *)dlsym(cuda, "cuLaunchKernel");
    if (init(0) != 0) {
        fprintf(stderr, "gate: no CUDA device\n");
        return 1;
    }
    enum { CALLS = 2000000, ROUNDS = 9 };
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int i = 0; i < CALLS; i++)
            launch(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
        double each = (now() - start) / CALLS;
        best = each < best ? each : best;
    }
    printf("%.2f\n", best);
    return 0;
}
