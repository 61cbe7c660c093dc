/* Allocates and frees memory of every kind, calling CUDA in one of three ways, and keeps one allocation of each kind.
 *
 *   allocations runtime   through the runtime's functions
 *   allocations driver    through the driver's, fetched with dlsym
 *   allocations table     through the driver's, fetched with cuGetProcAddress, as a statically linked runtime does
 *
 * Prints one line for each allocation that it keeps: KIND BYTES. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
#define MIB ((size_t)1 << 20)
#define OK(call) ok((int)(call), __LINE__, #call)

static void ok(int code, int line, const char *call) {
    if (code) {
        fprintf(stderr, "line %d: %s returned %d\n", line, call, code);
        exit(1);
    }
}

/* Functions of the runtime that this program links to. */
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMallocManaged(void **, size_t, unsigned), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaHostAlloc(void **, size_t, unsigned), cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
int cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *);

static void kept(const char *kind, size_t bytes) { printf("%s %zu\n", kind, bytes); }

static void through_the_runtime(void) {
    void *keep, *drop;
    size_t pitch;
    OK(cudaMalloc(&keep, 3 * MIB)), kept("device", 3 * MIB);
    OK(cudaMalloc(&drop, 5 * MIB)), OK(cudaFree(drop)), OK(cudaFree(NULL));
    OK(cudaMallocPitch(&keep, &pitch, 1000, 500)), kept("device", pitch * 500);
    OK(cudaMallocManaged(&keep, 2 * MIB, 1)), kept("managed", 2 * MIB);
    OK(cudaMallocHost(&keep, 7 * MIB)), kept("pinned", 7 * MIB);
    OK(cudaMallocHost(&drop, 6 * MIB)), OK(cudaFreeHost(drop));
    OK(cudaHostAlloc(&keep, 9 * MIB, 0)), kept("pinned", 9 * MIB);
    void *mine = aligned_alloc(4096, 4 * MIB);
    OK(cudaHostRegister(mine, 4 * MIB, 0)), kept("registered", 4 * MIB);
    void *brief = aligned_alloc(4096, 4 * MIB);
    OK(cudaHostRegister(brief, 4 * MIB, 0)), OK(cudaHostUnregister(brief));
    OK(cudaMallocAsync(&keep, 11 * MIB, NULL)), kept("async", 11 * MIB);
    OK(cudaMallocAsync(&drop, 13 * MIB, NULL)), OK(cudaFreeAsync(drop, NULL));
    /* Failed allocations are not recorded, and a refused free leaves the allocation recorded. */
    if (cudaMalloc(&drop, (size_t)1 << 50) == 0 || cudaFree((void *)12345) == 0) exit(1);
}

static void *driver;
static int (*from_table)(const char *, void **, int, uint64_t, int *);

/* The driver function by its ABI name, or by its plain name and version. */
static void *fetch(const char *abi, const char *plain, int per_thread) {
    void *found = NULL;
    if (from_table) {
        int status;
        OK(from_table(plain, &found, 12000, per_thread ? 2 : 0, &status));
    } else {
        found = dlsym(driver, abi);
    }
    if (!found) fprintf(stderr, "no %s\n", abi), exit(1);
    return found;
}

#define CALL(abi, plain, types, ...) OK(((int(*) types)fetch(abi, plain, 0))(__VA_ARGS__))
#define CALL_PER_THREAD(abi, plain, types, ...) OK(((int(*) types)fetch(abi, plain, 1))(__VA_ARGS__))

struct array_shape { size_t width, height; unsigned format, channels; };
struct properties { unsigned type, handles, location, device; void *meta; unsigned char flags[8]; };

static void through_the_driver(void) {
    void *context;
    address keep, drop;
    CALL("cuInit", "cuInit", (unsigned), 0);
    CALL("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
    CALL("cuCtxSetCurrent", "cuCtxSetCurrent", (void *), context);
    CALL("cuMemAlloc_v2", "cuMemAlloc", (address *, size_t), &keep, 3 * MIB), kept("device", 3 * MIB);
    CALL("cuMemAlloc_v2", "cuMemAlloc", (address *, size_t), &drop, 5 * MIB);
    CALL("cuMemFree_v2", "cuMemFree", (address), drop);
    CALL("cuMemAllocManaged", "cuMemAllocManaged", (address *, size_t, unsigned), &keep, 2 * MIB, 1),
        kept("managed", 2 * MIB);
    CALL("cuMemAllocHost_v2", "cuMemAllocHost", (address *, size_t), &keep, 7 * MIB), kept("pinned", 7 * MIB);
    CALL("cuMemHostAlloc", "cuMemHostAlloc", (address *, size_t, unsigned), &drop, 6 * MIB, 0);
    CALL("cuMemFreeHost", "cuMemFreeHost", (address), drop);
    CALL("cuMemAllocAsync", "cuMemAllocAsync", (address *, size_t, void *), &keep, 11 * MIB, NULL),
        kept("async", 11 * MIB);
    CALL_PER_THREAD("cuMemAllocAsync_ptsz", "cuMemAllocAsync", (address *, size_t, void *), &keep, 12 * MIB, NULL),
        kept("async", 12 * MIB);
    CALL_PER_THREAD("cuMemAllocAsync_ptsz", "cuMemAllocAsync", (address *, size_t, void *), &drop, 13 * MIB, NULL);
    CALL_PER_THREAD("cuMemFreeAsync_ptsz", "cuMemFreeAsync", (address, void *), drop, NULL);
    struct array_shape shape = {1024, 256, 0x20 /* float */, 4};
    CALL("cuArrayCreate_v2", "cuArrayCreate", (address *, struct array_shape *), &keep, &shape),
        kept("array", 1024 * 256 * 16);
    CALL("cuArrayCreate_v2", "cuArrayCreate", (address *, struct array_shape *), &drop, &shape);
    CALL("cuArrayDestroy", "cuArrayDestroy", (address), drop);

    /* Virtual memory: released memory stays as long as it is mapped. */
    struct properties where = {.type = 1, .location = 1};
    address range, handle, other;
    CALL("cuMemAddressReserve", "cuMemAddressReserve", (address *, size_t, size_t, address, uint64_t), &range, 8 * MIB,
         0, 0, 0);
    CALL("cuMemCreate", "cuMemCreate", (address *, size_t, struct properties *, uint64_t), &handle, 4 * MIB, &where, 0);
    CALL("cuMemMap", "cuMemMap", (address, size_t, size_t, address, uint64_t), range, 4 * MIB, 0, handle, 0);
    CALL("cuMemRelease", "cuMemRelease", (address), handle), kept("physical", 4 * MIB);
    CALL("cuMemCreate", "cuMemCreate", (address *, size_t, struct properties *, uint64_t), &other, 4 * MIB, &where, 0);
    CALL("cuMemMap", "cuMemMap", (address, size_t, size_t, address, uint64_t), range + 4 * MIB, 4 * MIB, 0, other, 0);
    CALL("cuMemRelease", "cuMemRelease", (address), other);
    CALL("cuMemUnmap", "cuMemUnmap", (address, size_t), range + 4 * MIB, 4 * MIB);
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    if (!strcmp(arguments[1], "runtime")) {
        through_the_runtime();
        return 0;
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    if (!strcmp(arguments[1], "table"))
        from_table = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    through_the_driver();
    return 0;
}
