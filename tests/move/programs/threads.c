/* Eight threads allocate, write, fill, copy, launch and free until stdin is closed. Each checks every byte of its own
 * memory. Prints the number of checks; exits with 9 at a wrong byte.
 *
 *   threads COUNTER    counts the checks in the first eight bytes of this file */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long address;
#define MIB ((size_t)1 << 20)
#define THREADS 8
#define MOST 2
/* A kernel that does nothing, for any GPU since 2014. */
#define KERNEL ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry kernel() { ret; }\n"
#define OK(call) ok((int)(call), __LINE__, #call)

static void ok(int code, int line, const char *call) {
    if (!code) return;
    fprintf(stderr, "line %d: %s returned %d\n", line, call, code);
    _Exit(8);
}

static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *);
static int (*function_of)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*allocate)(address *, size_t), (*release)(address), (*to_device)(address, const void *, size_t);
static int (*to_host)(void *, address, size_t), (*to_device_async)(address, const void *, size_t, void *);
static int (*to_host_async)(void *, address, size_t, void *), (*across)(address, address, size_t);
static int (*fill)(address, unsigned, size_t), (*new_stream)(void **, unsigned), (*wait_for)(void *);

static void find_functions(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    struct { void *to; const char *name; } all[] = {
        {&init, "cuInit"}, {&retain, "cuDevicePrimaryCtxRetain"}, {&set_current, "cuCtxSetCurrent"},
        {&load, "cuModuleLoadData"}, {&function_of, "cuModuleGetFunction"}, {&launch, "cuLaunchKernel"},
        {&allocate, "cuMemAlloc_v2"}, {&release, "cuMemFree_v2"}, {&to_device, "cuMemcpyHtoD_v2"},
        {&to_host, "cuMemcpyDtoH_v2"}, {&to_device_async, "cuMemcpyHtoDAsync_v2"},
        {&to_host_async, "cuMemcpyDtoHAsync_v2"}, {&across, "cuMemcpyDtoD_v2"}, {&fill, "cuMemsetD32_v2"},
        {&new_stream, "cuStreamCreate"}, {&wait_for, "cuStreamSynchronize"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = driver ? dlsym(driver, all[i].name) : NULL;
        if (!found) fprintf(stderr, "no %s\n", all[i].name), exit(7);
        memcpy(all[i].to, &found, sizeof found);
    }
}

/* Word i of a block holds first + i * step. */
struct block { address at; uint32_t words, first, step; };

static void *context, *function;
static atomic_int stop;
static atomic_long *checks;

static void expect(const struct block *block, const uint32_t *now) {
    for (uint32_t i = 0; i < block->words; i++)
        if (now[i] != block->first + i * block->step) {
            fprintf(stderr, "word %u of %u is %#x, not %#x\n", i, block->words, now[i], block->first + i * block->step);
            _Exit(9);
        }
    ++*checks;
}

static void write_block(struct block *block, uint32_t *host, unsigned *seed, void *stream) {
    block->first = rand_r(seed), block->step = rand_r(seed);
    for (uint32_t i = 0; i < block->words; i++) host[i] = block->first + i * block->step;
    if (stream) {
        OK(to_device_async(block->at, host, block->words * 4, stream));
        OK(wait_for(stream));
    } else {
        OK(to_device(block->at, host, block->words * 4));
    }
}

static void read_block(const struct block *block, uint32_t *host, void *stream) {
    if (stream) {
        OK(to_host_async(host, block->at, block->words * 4, stream));
        OK(wait_for(stream));
    } else {
        OK(to_host(host, block->at, block->words * 4));
    }
    expect(block, host);
}

static void *work(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    struct block blocks[MOST];
    int count = 0;
    uint32_t *host = malloc(5 * MIB);
    void *stream;
    OK(set_current(context));
    OK(new_stream(&stream, 1));
    while (!stop) {
        int what = rand_r(&seed) % 8;
        struct block *block = count ? &blocks[rand_r(&seed) % count] : NULL;
        if (!block || (what == 0 && count < MOST)) {
            block = &blocks[count++];
            /* Most of these can be moved; some share a page of the driver and cannot. */
            static const size_t sizes[] = {2 * MIB, 2 * MIB, 2 * MIB + 4096, MIB};
            block->words = sizes[rand_r(&seed) % 4] / 4;
            OK(allocate(&block->at, block->words * 4));
            write_block(block, host, &seed, NULL);
        } else if (what == 1) {
            read_block(block, host, NULL);
            OK(release(block->at));
            *block = blocks[--count];
        } else if (what == 2) {
            write_block(block, host, &seed, rand_r(&seed) % 2 ? stream : NULL);
        } else if (what == 3) {
            block->first = rand_r(&seed), block->step = 0;
            OK(fill(block->at, block->first, block->words));
        } else if (what == 4) {
            struct block *other = &blocks[rand_r(&seed) % count];
            uint32_t words = block->words;
            if (other != block && other->words >= words) {
                block->first = other->first, block->step = other->step;
                OK(across(block->at, other->at, words * 4));
            }
        } else {
            OK(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
            read_block(block, host, rand_r(&seed) % 2 ? stream : NULL);
        }
    }
    for (int i = 0; i < count; i++) {
        read_block(&blocks[i], host, NULL);
        OK(release(blocks[i].at));
    }
    free(host);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    void *module;
    int counter = count == 2 ? open(arguments[1], O_RDWR) : -1;
    if (counter < 0 || ftruncate(counter, sizeof *checks)) return 2;
    checks = mmap(NULL, sizeof *checks, PROT_READ | PROT_WRITE, MAP_SHARED, counter, 0);
    if (checks == MAP_FAILED) return 2;
    find_functions();
    OK(init(0)), OK(retain(&context, 0)), OK(set_current(context));
    OK(load(&module, KERNEL)), OK(function_of(&function, module, "kernel"));
    for (int i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)));
    char nothing;
    while (read(0, &nothing, 1) > 0) {}
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("%ld checks\n", *checks);
    return 0;
}
