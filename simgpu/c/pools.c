/* Stream-ordered memory: a pool keeps freed memory until a synchronisation, which trims it to the threshold. */
#include "check.h"

typedef unsigned long long address;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemAllocAsync(address *, size_t, void *);
int cuMemAllocAsync_ptsz(address *, size_t, void *);
int cuMemFreeAsync(address, void *);
int cuMemAllocFromPoolAsync(address *, size_t, void *, void *);
int cuDeviceGetDefaultMemPool(void **, int);
int cuDeviceGetMemPool(void **, int);
int cuDeviceSetMemPool(int, void *);
int cuMemPoolGetAttribute(void *, int, void *);
int cuMemPoolSetAttribute(void *, int, void *);
int cuMemPoolTrimTo(void *, size_t);
int cuMemPoolDestroy(void *);
struct properties { int type, handles, location, id; void *win32; size_t max; char rest[56]; };
int cuMemPoolCreate(void **, const struct properties *);

enum { THRESHOLD = 4, RESERVED = 5, RESERVED_HIGH = 6, USED = 7, USED_HIGH = 8 };

static size_t available(void) {
    size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    return free;
}

static uint64_t figure(void *pool, int which) {
    uint64_t value;
    OK(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

int main(void) {
    void *context, *pool, *own, *current;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    size_t free = available();

    /* GIVEN a block from the default pool, whose threshold is 0 */
    address block, again;
    OK(cuMemAllocAsync(&block, 64 * MIB, NULL));
    CHECK(free - available() == 64 * MIB);
    CHECK(figure(pool, USED) == 64 * MIB && figure(pool, RESERVED) == 64 * MIB);
    /* WHEN it is freed, THEN the pool keeps it until a synchronisation */
    OK(cuMemFreeAsync(block, NULL));
    CHECK(free - available() == 64 * MIB);
    CHECK(figure(pool, USED) == 0 && figure(pool, USED_HIGH) == 64 * MIB);
    OK(cuCtxSynchronize());
    CHECK(available() == free);

    /* GIVEN a threshold, WHEN a block is freed and the context synchronised, THEN the pool keeps the block and reuses it */
    uint64_t threshold = 128 * MIB;
    OK(cuMemPoolSetAttribute(pool, THRESHOLD, &threshold));
    OK(cuMemAllocAsync(&block, 64 * MIB, NULL));
    OK(cuMemFreeAsync(block, NULL));
    OK(cuCtxSynchronize());
    CHECK(free - available() == 64 * MIB);
    OK(cuMemAllocAsync_ptsz(&again, 60 * MIB, NULL));
    CHECK(again == block);
    OK(cuMemFree_v2(again));

    /* WHEN the rest of the card is allocated, THEN the pool releases cached memory and the allocation succeeds */
    address rest;
    OK(cuMemAlloc_v2(&rest, free - 4 * MIB));
    OK(cuMemFree_v2(rest));
    CHECK(available() == free);

    /* WHEN a pool is trimmed, THEN the memory is free on the card */
    OK(cuMemAllocAsync(&block, 64 * MIB, NULL));
    OK(cuMemFreeAsync(block, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(available() == free);
    CHECK(figure(pool, RESERVED) == 0 && figure(pool, RESERVED_HIGH) == 64 * MIB);

    /* GIVEN a pool of the program with a limit, WHEN more is allocated, THEN the allocation fails */
    struct properties wanted = {1, 0, 1, 0, NULL, 32 * MIB, {0}};
    OK(cuMemPoolCreate(&own, &wanted));
    RETURNS(2, cuMemAllocFromPoolAsync(&block, 64 * MIB, own, NULL));
    OK(cuMemAllocFromPoolAsync(&block, 16 * MIB, own, NULL));
    /* AND a destroyed pool exists until its blocks are freed; the default pool cannot be destroyed */
    OK(cuDeviceSetMemPool(0, own));
    OK(cuMemPoolDestroy(own));
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == pool);
    CHECK(free - available() == 16 * MIB);
    OK(cuMemFreeAsync(block, NULL));
    CHECK(available() == free);
    RETURNS(1, cuMemPoolDestroy(pool));
    RETURNS(1, cuMemFreeAsync(block, NULL));
    puts("ok");
    return 0;
}
