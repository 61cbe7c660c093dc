/* A library preloaded before simgpu, like memlab: it counts the driver's allocations by hooking cuGetProcAddress. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*real_get)(const char *, void **, int, uint64_t, int *);
static int (*real_alloc)(unsigned long long *, size_t);
static unsigned long calls, bytes;

static int counted_alloc(unsigned long long *to, size_t size) {
    int code = real_alloc(to, size);
    if (code == 0) calls++, bytes += size;
    return code;
}

static int hooked_get(const char *name, void **to, int version, uint64_t flags, int *status) {
    int code = real_get(name, to, version, flags, status);
    if (code == 0 && strcmp(name, "cuMemAlloc") == 0) {
        real_alloc = (int (*)(unsigned long long *, size_t))*to;
        *to = (void *)counted_alloc;
    }
    return code;
}

void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (real == NULL) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (found != NULL && strcmp(name, "cuGetProcAddress_v2") == 0) {
        real_get = (int (*)(const char *, void **, int, uint64_t, int *))found;
        return (void *)hooked_get;
    }
    return found;
}

__attribute__((destructor)) static void report(void) {
    if (calls > 0) fprintf(stderr, "interposer: %lu allocations, %lu bytes\n", calls, bytes);
}
