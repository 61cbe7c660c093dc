// Measures the driver's calls of a move besides its copies, and the part of them that a copy can hide. Also measures copies
// by size, number of streams and kind of host memory. Prints milliseconds for each way, on a machine with an NVIDIA GPU:
//
//     cc -O2 -I/usr/local/cuda/include benches/mapping.c -lcuda -o /tmp/mapping && /tmp/mapping [GiB] [MiB of a piece]
#include "driver.h"

#include <string.h>

#define CHUNK (64 * MIB)
#define MOST 4096

static CUmemAllocationProp properties;
static CUmemAccessDesc access_of_device;
static size_t piece;
static int count;
static CUdeviceptr addresses;
static CUmemGenericAllocationHandle handles[MOST];
static CUevent copied[MOST];
static CUstream stream, streams[4];
static char *host;
static size_t host_bytes; // Copies wrap around at its end.

// Milliseconds.
static double since(double start) { return (now() - start) * 1e3; }

static void create(int i) { check(cuMemCreate(&handles[i], piece, &properties, 0), "create"); }
static void map(int i) { check(cuMemMap(addresses + i * piece, piece, 0, handles[i], 0), "map"); }
static void set_access(int i) { check(cuMemSetAccess(addresses + i * piece, piece, &access_of_device, 1), "access"); }
static void unmap(int i) { check(cuMemUnmap(addresses + i * piece, piece), "unmap"); }
static void release(int i) { check(cuMemRelease(handles[i]), "release"); }

static void place(int i) {
    map(i);
    set_access(i);
}

static void drop(int i) {
    unmap(i);
    release(i);
}

static void copy(int i, int to_host) {
    for (size_t offset = 0; offset < piece; offset += CHUNK) {
        size_t bytes = piece - offset < CHUNK ? piece - offset : CHUNK;
        CUdeviceptr device = addresses + i * piece + offset;
        check(to_host ? cuMemcpyDtoHAsync(host, device, bytes, stream) : cuMemcpyHtoDAsync(device, host, bytes, stream), "copy");
    }
    check(cuEventRecord(copied[i], stream), "record");
}

static void copy_out(int i) { copy(i, 1); }
static void copy_back(int i) { copy(i, 0); }
static void finish(void) { check(cuStreamSynchronize(stream), "synchronize"); }

static double each(void (*work)(int)) {
    double start = now();
    for (int i = 0; i < count; i++)
        work(i);
    return since(start);
}

// Copies out, and does `work` to each piece while the next is copied.
static double out_beside(void (*work)(int)) {
    double start = now();
    for (int i = 0; i < count; i++) {
        copy_out(i);
        if (i) {
            check(cuEventSynchronize(copied[i - 1]), "wait");
            work(i - 1);
        }
    }
    finish();
    work(count - 1);
    return since(start);
}

// Copies back, and maps each piece while the previous one is copied.
static double back_beside(void) {
    double start = now();
    for (int i = 0; i < count; i++) {
        place(i);
        copy_back(i);
        if (i)
            check(cuEventSynchronize(copied[i - 1]), "wait");
    }
    finish();
    return since(start);
}

// Copies in chunks, alternating between some of the streams.
static double copies(int to_host, size_t chunk, int turns) {
    double start = now();
    for (size_t offset = 0; offset < count * piece; offset += chunk) {
        size_t bytes = count * piece - offset < chunk ? count * piece - offset : chunk;
        CUstream on = streams[offset / chunk % turns];
        CUdeviceptr device = addresses + offset;
        char *at = host + offset % host_bytes;
        check(to_host ? cuMemcpyDtoHAsync(at, device, bytes, on) : cuMemcpyHtoDAsync(device, at, bytes, on), "copy");
    }
    for (int i = 0; i < turns; i++)
        check(cuStreamSynchronize(streams[i]), "synchronize");
    return since(start);
}

#define ROUNDS 7
#define WAYS 6
static const struct {
    size_t chunk;
    int streams;
} ways[WAYS] = {{64 * MIB, 1}, {64 * MIB, 2}, {64 * MIB, 4}, {256 * MIB, 1}, {256 * MIB, 2}, {GIB, 1}};
static double taken[WAYS][2][ROUNDS];

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void tell(double times[2][ROUNDS]) {
    for (int to_host = 1; to_host >= 0; to_host--) {
        qsort(times[to_host], ROUNDS, sizeof(double), compare);
        printf(" %s %.1f (median; %.1f at best)", to_host ? "out" : "back", times[to_host][ROUNDS / 2], times[to_host][0]);
    }
    printf("\n");
}

// As memlab's arena: regions of 256 MiB, pinned one by one.
static char *registered(size_t bytes) {
    char *memory = map_huge_pages(bytes);
    memset(memory, 1, bytes);
    for (size_t offset = 0; offset < bytes; offset += 256 * MIB) {
        size_t region = bytes - offset < 256 * MIB ? bytes - offset : 256 * MIB;
        check(cuMemHostRegister(memory + offset, region, 0), "register");
    }
    return memory;
}

int main(int argc, char **argv) {
    size_t gib = argc > 1 ? strtoul(argv[1], 0, 10) : 40;
    piece = (argc > 2 ? strtoul(argv[2], 0, 10) : 1024) * MIB;
    count = gib * GIB / piece;
    if (count < 1 || count > MOST)
        return 2;
    use_first_device();
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = access_of_device.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access_of_device.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(cuMemAddressReserve(&addresses, count * piece, 0, 0, 0), "reserve");
    host_bytes = GIB;
    check(cuMemHostAlloc((void **)&host, host_bytes, 0), "host");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    for (int i = 0; i < 4; i++)
        check(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "stream");
    for (int i = 0; i < count; i++)
        check(cuEventCreate(&copied[i], CU_EVENT_DISABLE_TIMING), "event");

    printf("%zu GiB in %d pieces\n", gib, count);
    for (int round = 0; round < 3; round++) {
        double created = each(create), mapped = each(map), allowed = each(set_access);
        double start = now();
        each(copy_out);
        finish();
        double out = since(start);
        double unmapped = each(unmap), placed_again = each(place);
        double beside = out_beside(unmap);
        each(place);
        double dropping = out_beside(drop);
        each(create);
        double back = back_beside();
        start = now();
        each(copy_back);
        finish();
        double copied_back = since(start);
        each(unmap);
        double released = each(release);
        printf("create %.1f, map %.1f, set access %.1f, unmap %.1f, map again %.1f, release %.1f\n", created, mapped, allowed,
               unmapped, placed_again, released);
        printf("copy out %.1f; unmapping beside %.1f; releasing too %.1f; copy back %.1f; mapping beside %.1f\n", out, beside,
               dropping, copied_back, back);
    }
    each(create);
    each(place);
    char *small = host;
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            for (int to_host = 0; to_host < 2; to_host++)
                taken[way][to_host][round] = copies(to_host, ways[way].chunk, ways[way].streams);
    for (int way = 0; way < WAYS; way++) {
        printf("copies of %4zu MiB in %d streams:", ways[way].chunk / MIB, ways[way].streams);
        tell(taken[way]);
    }
    struct {
        const char *name;
        char *memory;
        size_t bytes;
    } kinds[] = {{"1 GiB of the driver's", small, GIB}, {"all the driver's", NULL, count * piece}, {"all at huge pages", NULL, count * piece}};
    check(cuMemHostAlloc((void **)&kinds[1].memory, kinds[1].bytes, 0), "host");
    kinds[2].memory = registered(kinds[2].bytes);
    for (int round = 0; round < ROUNDS; round++)
        for (int kind = 0; kind < 3; kind++)
            for (int to_host = 0; to_host < 2; to_host++) {
                host = kinds[kind].memory;
                host_bytes = kinds[kind].bytes;
                taken[kind][to_host][round] = copies(to_host, CHUNK, 1);
            }
    for (int kind = 0; kind < 3; kind++) {
        printf("host memory: %s:", kinds[kind].name);
        tell(taken[kind]);
    }
    return 0;
}
