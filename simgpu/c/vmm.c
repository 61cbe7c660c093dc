/* Virtual memory management: reserved addresses, physical memory mapped into them, and the documented errors. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

typedef unsigned long long address;
struct location { int type, id; };
struct properties { int type, handles; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemGetAllocationGranularity(size_t *, const struct properties *, int);
int cuMemAddressReserve(address *, size_t, size_t, address, unsigned long long);
int cuMemAddressFree(address, size_t);
int cuMemCreate(address *, size_t, const struct properties *, unsigned long long);
int cuMemRelease(address);
int cuMemMap(address, size_t, size_t, address, unsigned long long);
int cuMemUnmap(address, size_t);
int cuMemSetAccess(address, size_t, const struct access *, size_t);
int cuMemGetAccess(unsigned long long *, const struct location *, address);
int cuMemRetainAllocationHandle(address *, void *);
int cuMemGetAllocationPropertiesFromHandle(struct properties *, address);
int cuMemExportToShareableHandle(void *, address, int, unsigned long long);
int cuMemImportFromShareableHandle(address *, void *, int);
int cuMemcpyHtoD_v2(address, const void *, size_t);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuMemsetD8_v2(address, unsigned char, size_t);
int cuMemGetAddressRange_v2(address *, size_t *, address);
int cuMemFree_v2(address);
int cuIpcGetMemHandle(void *, address);

static size_t available(void) {
    size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    return free;
}

static sigjmp_buf escape;
static void on_fault(int signal) { siglongjmp(escape, signal); }

/* Returns 1 if a plain read of the address faults, as a read in a kernel would. */
static int faults(address where) {
    struct sigaction action = {.sa_handler = on_fault}, before;
    sigaction(SIGSEGV, &action, &before);
    int fault = sigsetjmp(escape, 1) != 0;
    if (!fault) (void)*(volatile char *)(uintptr_t)where;
    sigaction(SIGSEGV, &before, NULL);
    return fault;
}

int main(void) {
    void *context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    size_t free = available(), unit;
    struct properties on_card = {1, 1, {1, 0}, NULL, {0}};
    struct access all = {{1, 0}, 3};
    OK(cuMemGetAllocationGranularity(&unit, &on_card, 0));
    CHECK(unit == 2 * MIB);

    /* GIVEN a reserved range without mappings */
    address range;
    OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
    CHECK(available() == free);
    CHECK(faults(range));
    unsigned char *host = malloc(4 * MIB), *back = malloc(4 * MIB);
    pattern(host, 4 * MIB, 3);
    RETURNS(1, cuMemcpyHtoD_v2(range, host, 16));

    /* WHEN memory is created and mapped, THEN the card is charged for it, and it is accessible only after cuMemSetAccess */
    address one, two;
    OK(cuMemCreate(&one, 4 * MIB, &on_card, 0));
    CHECK(free - available() == 4 * MIB);
    OK(cuMemMap(range, 4 * MIB, 0, one, 0));
    CHECK(faults(range));
    RETURNS(1, cuMemcpyHtoD_v2(range, host, 16));
    OK(cuMemSetAccess(range, 4 * MIB, &all, 1));
    unsigned long long flags;
    OK(cuMemGetAccess(&flags, &all.location, range));
    CHECK(flags == 3);
    OK(cuMemcpyHtoD_v2(range, host, 4 * MIB));

    /* AND a second mapping of the same memory has the same bytes */
    OK(cuMemMap(range + 8 * MIB, 4 * MIB, 0, one, 0));
    OK(cuMemSetAccess(range + 8 * MIB, 4 * MIB, &all, 1));
    OK(cuMemcpyDtoH_v2(back, range + 8 * MIB, 4 * MIB));
    CHECK(has_pattern(back, 4 * MIB, 3));
    OK(cuMemsetD8_v2(range + 8 * MIB, 0, MIB));
    OK(cuMemcpyDtoH_v2(back, range, 4 * MIB));
    CHECK(back[0] == 0 && back[MIB - 1] == 0 && back[MIB] == host[MIB]);
    OK(cuMemcpyHtoD_v2(range, host, 4 * MIB));
    OK(cuMemUnmap(range + 8 * MIB, 4 * MIB));

    /* AND a copy may span adjacent mappings, but not a gap */
    OK(cuMemCreate(&two, 2 * MIB, &on_card, 0));
    OK(cuMemMap(range + 4 * MIB, 2 * MIB, 0, two, 0));
    OK(cuMemSetAccess(range + 4 * MIB, 2 * MIB, &all, 1));
    OK(cuMemcpyHtoD_v2(range + 3 * MIB, host, 3 * MIB));
    RETURNS(1, cuMemcpyHtoD_v2(range + 3 * MIB, host, 4 * MIB));
    address base;
    size_t size;
    OK(cuMemGetAddressRange_v2(&base, &size, range + 5 * MIB));
    CHECK(base == range + 4 * MIB && size == 2 * MIB);

    /* AND misuse returns an error */
    RETURNS(1, cuMemCreate(&base, MIB, &on_card, 0));
    RETURNS(1, cuMemMap(range, 4 * MIB, 0, one, 0));
    RETURNS(1, cuMemMap(range + 62 * MIB, 4 * MIB, 0, one, 0));
    RETURNS(1, cuMemMap(range + 16 * MIB, 2 * MIB, 2 * MIB, one, 0));
    RETURNS(1, cuMemMap(range + 16 * MIB, 4 * MIB, 0, two, 0));
    RETURNS(1, cuMemUnmap(range, 2 * MIB));
    RETURNS(1, cuMemUnmap(range + 16 * MIB, 2 * MIB));
    RETURNS(1, cuMemSetAccess(range, 2 * MIB, &all, 1));
    RETURNS(1, cuMemSetAccess(range, 8 * MIB, &all, 1));
    RETURNS(1, cuMemAddressFree(range, 64 * MIB));
    RETURNS(1, cuMemAddressReserve(&base, 100, 0, 0, 0));
    RETURNS(1, cuMemAddressReserve(&base, 2 * MIB, 3, 0, 0));
    RETURNS(1, cuMemFree_v2(range));
    unsigned char ipc[64];
    RETURNS(1, cuIpcGetMemHandle(ipc, range));
    RETURNS(2, cuMemCreate(&base, 8 * GIB, &on_card, 0));
    struct properties elsewhere = {1, 0, {1, 5}, NULL, {0}};
    RETURNS(101, cuMemCreate(&base, 2 * MIB, &elsewhere, 0));

    /* WHEN the handle is released, THEN the mapping keeps the memory, and its handle can be retained again */
    OK(cuMemRelease(one));
    RETURNS(1, cuMemRelease(one));
    CHECK(free - available() == 6 * MIB);
    address same;
    OK(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(range + 100)));
    CHECK(same == one);
    struct properties found;
    OK(cuMemGetAllocationPropertiesFromHandle(&found, same));
    CHECK(found.location.type == 1 && found.location.id == 0);

    /* WHEN the memory is unmapped, THEN its addresses fault; WHEN it is mapped again, THEN they have its bytes */
    OK(cuMemcpyHtoD_v2(range, host, 4 * MIB));
    OK(cuMemUnmap(range, 4 * MIB));
    CHECK(faults(range));
    OK(cuMemMap(range, 4 * MIB, 0, same, 0));
    OK(cuMemSetAccess(range, 4 * MIB, &all, 1));
    OK(cuMemcpyDtoH_v2(back, range, 4 * MIB));
    CHECK(has_pattern(back, 4 * MIB, 3));

    /* AND an imported handle is the same memory, and is not charged twice */
    int file;
    address imported;
    OK(cuMemExportToShareableHandle(&file, same, 1, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)file, 1));
    close(file);
    OK(cuMemMap(range + 32 * MIB, 4 * MIB, 0, imported, 0));
    OK(cuMemSetAccess(range + 32 * MIB, 4 * MIB, &all, 1));
    OK(cuMemcpyDtoH_v2(back, range + 32 * MIB, 4 * MIB));
    CHECK(has_pattern(back, 4 * MIB, 3));
    CHECK(free - available() == 6 * MIB);
    OK(cuMemUnmap(range + 32 * MIB, 4 * MIB));
    OK(cuMemRelease(imported));

    /* AND host memory mapped at a device address is not charged to the card */
    struct properties on_host = {1, 0, {2, 0}, NULL, {0}};
    address spilled;
    OK(cuMemCreate(&spilled, 2 * MIB, &on_host, 0));
    OK(cuMemMap(range + 40 * MIB, 2 * MIB, 0, spilled, 0));
    OK(cuMemSetAccess(range + 40 * MIB, 2 * MIB, &all, 1));
    OK(cuMemcpyHtoD_v2(range + 40 * MIB, host, 2 * MIB));
    CHECK(free - available() == 6 * MIB);
    OK(cuMemRelease(spilled));

    /* WHEN all mappings are removed, two of them in one call, THEN the free memory is that of the start */
    OK(cuMemUnmap(range + 40 * MIB, 2 * MIB));
    OK(cuMemRelease(two));
    OK(cuMemRelease(same));
    OK(cuMemUnmap(range, 6 * MIB));
    CHECK(available() == free);
    OK(cuMemAddressFree(range, 64 * MIB));
    puts("ok");
    return 0;
}
