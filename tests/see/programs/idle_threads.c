/* A thousand threads, all alive at once, report one block each to memlab. Prints the KiB of memory per thread. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#define THREADS 1000

extern void report(void *, int64_t, size_t, size_t, uint16_t)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
#pragma weak report

static pthread_barrier_t started, reported, measured;

static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) return -1;
    fclose(file);
    return pages * 4;
}

static void *work(void *number) {
    pthread_barrier_wait(&started);
    report(number, 512, 0, 0, 1);
    pthread_barrier_wait(&reported);
    pthread_barrier_wait(&measured);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&started, NULL, THREADS + 1);
    pthread_barrier_init(&reported, NULL, THREADS + 1);
    pthread_barrier_init(&measured, NULL, THREADS + 1);
    report((void *)8, 512, 0, 0, 1);
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(4096 + i * 512))) return 1;
    long before = resident_kib();
    pthread_barrier_wait(&started);
    pthread_barrier_wait(&reported);
    printf("%ld\n", (resident_kib() - before) / THREADS);
    pthread_barrier_wait(&measured);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
