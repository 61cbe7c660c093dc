/* Eight threads report ten thousand blocks each to memlab. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#define THREADS 8

extern void report(void *, int64_t, size_t, size_t, uint16_t)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
#pragma weak report

static void *work(void *number) {
    for (intptr_t i = 1; report && i <= 10000; i++) report((void *)((intptr_t)number << 32 | i * 512), 512, 0, 0, 1);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1))) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
