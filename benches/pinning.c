// Measures how fast host memory becomes available for copies from a GPU, by way and number of threads. The first offload of
// a program waits for it. Prints GB/s of each way, on a machine with an NVIDIA GPU:
//
//     cc -O2 -pthread -I/usr/local/cuda/include benches/pinning.c -lcuda -o /tmp/pinning && /tmp/pinning [GiB]
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static CUcontext context;
static size_t total;

// Work on the pieces of a memory, by several threads.
struct Work {
    char *memory;
    size_t piece;
    atomic_size_t next;
    void (*each)(char *, size_t);
};

static void *worker(void *argument) {
    struct Work *work = argument;
    check(cuCtxSetCurrent(context), "context");
    for (;;) {
        size_t offset = atomic_fetch_add(&work->next, work->piece);
        if (offset >= total)
            return NULL;
        work->each(work->memory + offset, work->piece);
    }
}

static double together(char *memory, size_t piece, int threads, void (*each)(char *, size_t)) {
    struct Work work = {memory, piece, 0, each};
    pthread_t ids[256];
    double start = now();
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, worker, &work);
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return now() - start;
}

static void say(const char *what, size_t piece, int threads, double seconds) {
    printf("%-44s %5zu MiB a piece, %2d threads: %6.2f s, %6.1f GB/s\n", what, piece / MIB, threads, seconds, total / seconds / 1e9);
    fflush(stdout);
}

static void populate(char *memory, size_t bytes) {
    if (madvise(memory, bytes, MADV_POPULATE_WRITE))
        memset(memory, 0, bytes);
}
static void pin(char *memory, size_t bytes) { check(cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE), "register"); }
static void populate_and_pin(char *memory, size_t bytes) {
    populate(memory, bytes);
    pin(memory, bytes);
}
static void unpin(char *memory, size_t bytes) {
    (void)bytes;
    check(cuMemHostUnregister(memory), "unregister");
}

// Memory that the driver allocates itself.
static void *allocated[4096];
static atomic_int count;
static void allocate(char *memory, size_t bytes) {
    (void)memory;
    void *result;
    check(cuMemHostAlloc(&result, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    allocated[atomic_fetch_add(&count, 1)] = result;
}

// Physical memory of the host, mapped for the device.
static CUdeviceptr window;
static CUmemGenericAllocationHandle handles[4096];
static void create(char *memory, size_t bytes) {
    CUmemAllocationProp of_host = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
    size_t offset = (size_t)memory;
    CUmemGenericAllocationHandle handle;
    check(cuMemCreate(&handle, bytes, &of_host, 0), "cuMemCreate");
    handles[offset / bytes] = handle;
    check(cuMemMap(window + offset, bytes, 0, handle, 0), "cuMemMap");
    CUmemAccessDesc access[2] = {
        {{.type = CU_MEM_LOCATION_TYPE_DEVICE}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    check(cuMemSetAccess(window + offset, bytes, access, 2), "cuMemSetAccess");
}

// Copies through pinned buffers, a pair for each thread, into memory that is touched for the first time.
#define STAGE (16 * MIB)
static CUdeviceptr device;
static char *stages;
static atomic_int stage_count;
static void staged_worker(char *memory, size_t bytes) {
    static _Thread_local char *stage;
    static _Thread_local CUstream stream;
    static _Thread_local CUevent events[2];
    if (!stage) {
        stage = stages + atomic_fetch_add(&stage_count, 1) * 2 * STAGE;
        check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
        for (int i = 0; i < 2; i++)
            check(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC), "event");
    }
    size_t parts = bytes / STAGE;
    for (size_t part = 0; part <= parts; part++) {
        if (part < parts) {
            check(cuMemcpyDtoHAsync(stage + part % 2 * STAGE, device + part * STAGE, STAGE, stream), "copy");
            check(cuEventRecord(events[part % 2], stream), "record");
        }
        if (part > 0) {
            check(cuEventSynchronize(events[(part - 1) % 2]), "wait");
            memcpy(memory + (part - 1) * STAGE, stage + (part - 1) % 2 * STAGE, STAGE);
        }
    }
}
static void pageable(char *memory, size_t bytes) { check(cuMemcpyDtoH(memory, device, bytes), "copy"); }

// Pins a piece and copies into it, while others are being pinned.
static void populate_pin_copy(char *memory, size_t bytes) {
    populate_and_pin(memory, bytes);
    check(cuMemcpyDtoH(memory, device, bytes), "copy");
}

int main(int argc, char **argv) {
    total = (argc > 1 ? atol(argv[1]) : 8) * GIB;
    context = use_first_device();
    check(cuMemAlloc(&device, GIB), "device memory");
    int cores = sysconf(_SC_NPROCESSORS_ONLN);
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char line[256] = "?\n";
    if (file && fgets(line, sizeof line, file))
        fclose(file);
    printf("%d cores; transparent huge pages: %s", cores, line);
    int threads[] = {1, 4, 8, 16};
    for (int i = 0; i < 4 && threads[i] <= cores; i++) {
        char *memory = map_huge_pages(total);
        say("fault in", 256 * MIB, threads[i], together(memory, 256 * MIB, threads[i], populate));
        munmap(memory, total);
    }
    size_t pieces[] = {64 * MIB, 256 * MIB, GIB};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 4 && threads[i] <= cores; i++) {
            if (p != 1 && threads[i] != 1 && threads[i] != 8)
                continue;
            char *memory = map_huge_pages(total);
            together(memory, 256 * MIB, cores < 16 ? cores : 16, populate);
            say("pin what is faulted in", pieces[p], threads[i], together(memory, pieces[p], threads[i], pin));
            double start = now();
            together(memory, pieces[p], 1, unpin);
            if (p == 1 && i == 0)
                say("unpin", pieces[p], 1, now() - start);
            munmap(memory, total);
        }
    for (int i = 2; i < 4 && threads[i] <= cores; i++) {
        char *memory = map_huge_pages(total);
        say("fault in and pin", 256 * MIB, threads[i], together(memory, 256 * MIB, threads[i], populate_and_pin));
        together(memory, 256 * MIB, 1, unpin);
        munmap(memory, total);
        memory = map_huge_pages(total);
        say("fault in, pin and copy", 256 * MIB, threads[i], together(memory, 256 * MIB, threads[i], populate_pin_copy));
        together(memory, 256 * MIB, 1, unpin);
        munmap(memory, total);
    }
    for (int i = 0; i < 3 && threads[i] <= cores; i += 2) {
        count = 0;
        say("cuMemHostAlloc", 256 * MIB, threads[i], together(NULL, 256 * MIB, threads[i], allocate));
        for (int j = 0; j < count; j++)
            cuMemFreeHost(allocated[j]);
    }
    for (int i = 0; i < 3 && threads[i] <= cores; i += 2) {
        check(cuMemAddressReserve(&window, total, 0, 0, 0), "reserve");
        say("cuMemCreate, map, access", 256 * MIB, threads[i], together(NULL, 256 * MIB, threads[i], create));
        double start = now();
        for (size_t offset = 0; offset < total; offset += GIB)
            check(cuMemcpyDtoDAsync(window + offset, device, GIB, 0), "copy");
        check(cuCtxSynchronize(), "synchronize");
        say("copy into it", GIB, 1, now() - start);
        cuMemUnmap(window, total);
        for (size_t j = 0; j < total / (256 * MIB); j++)
            cuMemRelease(handles[j]);
        cuMemAddressFree(window, total);
    }
    check(cuMemHostAlloc((void **)&stages, 64 * STAGE, 0), "stages");
    for (int i = 1; i < 4 && threads[i] <= cores; i++) {
        char *memory = map_huge_pages(total);
        stage_count = 0;
        say("through pinned buffers, to new memory", 256 * MIB, threads[i], together(memory, 256 * MIB, threads[i], staged_worker));
        stage_count = 0;
        say("the same, to memory in use", 256 * MIB, threads[i], together(memory, 256 * MIB, threads[i], staged_worker));
        munmap(memory, total);
    }
    char *memory = map_huge_pages(total);
    say("the driver's copy to memory not pinned", GIB, 1, together(memory, GIB, 1, pageable));
    say("the same again", GIB, 1, together(memory, GIB, 1, pageable));
    say("the same again", GIB, 4, together(memory, GIB, 4, pageable));
    return 0;
}
