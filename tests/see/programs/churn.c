/* Calls memlab's hook on PyTorch's block report from three threads until it is killed. The address of an allocation
 * encodes its thread and its number. Writes the number of the last freed one to stdout from time to time. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

extern void report(void *, int64_t, size_t, size_t, uint16_t)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
#pragma weak report

static void *work(void *argument) {
    uintptr_t thread = (uintptr_t)argument;
    for (uintptr_t number = 0;; number++) {
        void *address = (void *)(thread << 40 | number);
        report(address, 512, 0, 0, 1);
        report(address, -512, 0, 0, 1);
        if (number % 500 == 0) {
            char text[64];
            int length = snprintf(text, sizeof text, "%lu:%lu\n", (unsigned long)thread, (unsigned long)number);
            if (write(1, text, (size_t)length) != length)
                return NULL;
            usleep(100);
        }
    }
}

int main(void) {
    report((void *)8, 512, 0, 0, 1);
    puts("ready");
    fflush(stdout);
    pthread_t thread;
    for (uintptr_t i = 1; i <= 3; i++)
        pthread_create(&thread, NULL, work, (void *)i);
    pause();
}
