/* Memory through the runtime: accounting of allocations and frees, copied and filled bytes, and errors. */
#include "check.h"

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMallocManaged(void **, size_t, unsigned);
int cudaMallocHost(void **, size_t);
int cudaFreeHost(void *);
int cudaHostRegister(void *, size_t, unsigned);
int cudaHostUnregister(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMemset(void *, int, size_t);
int cudaMemGetInfo(size_t *, size_t *);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaSetDevice(int);
int cudaGetDeviceCount(int *);
const char *cudaGetErrorName(int);

struct channels { int x, y, z, w, kind; };
int cudaMallocArray(void **, const struct channels *, size_t, size_t, unsigned);
int cudaFreeArray(void *);
int cudaMemcpy2DToArray(void *, size_t, size_t, const void *, size_t, size_t, size_t, int);
int cudaMemcpy2DFromArray(void *, size_t, const void *, size_t, size_t, size_t, size_t, int);

struct attributes { int type, device; void *on_device, *on_host; long reserved[8]; };
int cudaPointerGetAttributes(struct attributes *, const void *);

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, ANY = 4 };

static size_t available(void) {
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    CHECK(free <= total);
    return free;
}

int main(void) {
    int count;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 1);

    /* GIVEN a new context, which is charged to the card */
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    CHECK(total == 8 * GIB);
    CHECK(total - free == 256 * MIB);

    /* WHEN memory is allocated, THEN the card is charged its size, rounded up to 2 MiB, or to 512 bytes if small */
    void *large, *small;
    OK(cudaMalloc(&large, 100 * MIB + 1));
    CHECK(free - available() == 102 * MIB);
    CHECK((uintptr_t)large % (2 * MIB) == 0);
    OK(cudaMalloc(&small, 100));
    CHECK(free - available() == 102 * MIB + 512);

    /* AND fresh memory is zero */
    unsigned char *host = malloc(4 * MIB), *back = malloc(4 * MIB);
    OK(cudaMemcpy(back, large, 4 * MIB, TO_HOST));
    for (size_t i = 0; i < 4 * MIB; i++) CHECK(back[i] == 0);

    /* AND copied bytes can be copied back, also through a second block */
    pattern(host, 4 * MIB, 7);
    void *other;
    OK(cudaMalloc(&other, 4 * MIB));
    OK(cudaMemcpy(large, host, 4 * MIB, TO_DEVICE));
    OK(cudaMemcpy(other, large, 4 * MIB, ON_DEVICE));
    OK(cudaMemcpy(back, other, 4 * MIB, ANY));
    CHECK(has_pattern(back, 4 * MIB, 7));

    /* AND memset fills exactly its range, with zeros, which release whole pages, and with other values */
    OK(cudaMemset((char *)other + 5, 0, 3 * MIB));
    OK(cudaMemset((char *)other + 3 * MIB + 5, 0xab, 100));
    OK(cudaMemcpy(back, other, 4 * MIB, TO_HOST));
    CHECK(has_pattern(back, 5, 7));
    for (size_t i = 5; i < 3 * MIB + 5; i++) CHECK(back[i] == 0);
    for (size_t i = 3 * MIB + 5; i < 3 * MIB + 105; i++) CHECK(back[i] == 0xab);
    CHECK(back[3 * MIB + 105] == host[3 * MIB + 105]);

    /* AND pointer attributes are right */
    struct attributes about;
    OK(cudaPointerGetAttributes(&about, (char *)large + 12345));
    CHECK(about.type == 2 && about.device == 0 && about.on_device == (char *)large + 12345);
    OK(cudaPointerGetAttributes(&about, host));
    CHECK(about.type == 0 && about.on_device == NULL);
    void *pinned, *managed;
    OK(cudaMallocHost(&pinned, MIB));
    OK(cudaPointerGetAttributes(&about, pinned));
    CHECK(about.type == 1 && about.on_host == pinned);
    OK(cudaMallocManaged(&managed, MIB, 1));
    memset(managed, 1, MIB);
    OK(cudaPointerGetAttributes(&about, managed));
    CHECK(about.type == 3);
    RETURNS(712, cudaHostRegister(pinned, MIB, 0));
    OK(cudaHostRegister(host, 4 * MIB, 0));
    OK(cudaPointerGetAttributes(&about, host + 100));
    CHECK(about.type == 1);
    RETURNS(712, cudaHostRegister(host + 100, 10, 0));
    OK(cudaHostUnregister(host));
    RETURNS(713, cudaHostUnregister(host));

    /* AND pitched memory and arrays keep their contents */
    void *pitched, *array;
    size_t pitch;
    OK(cudaMallocPitch(&pitched, &pitch, 100, 50));
    CHECK(pitch >= 100 && pitch % 512 == 0);
    OK(cudaMemcpy2D(pitched, pitch, host, 100, 100, 50, TO_DEVICE));
    memset(back, 0, 5000);
    OK(cudaMemcpy2D(back, 100, pitched, pitch, 100, 50, TO_HOST));
    CHECK(has_pattern(back, 5000, 7));
    struct channels floats = {32, 0, 0, 0, 2};
    OK(cudaMallocArray(&array, &floats, 64, 32, 0));
    OK(cudaMemcpy2DToArray(array, 0, 0, host, 256, 256, 32, TO_DEVICE));
    memset(back, 0, 8192);
    OK(cudaMemcpy2DFromArray(back, 256, array, 0, 0, 256, 32, TO_HOST));
    CHECK(has_pattern(back, 8192, 7));

    /* AND misuse returns the documented error, which is stored until it is read */
    RETURNS(2, cudaMalloc(&small, 9 * GIB));
    CHECK(cudaPeekAtLastError() == 2);
    CHECK(cudaGetLastError() == 2);
    CHECK(cudaGetLastError() == 0);
    CHECK(strcmp(cudaGetErrorName(2), "cudaErrorMemoryAllocation") == 0);
    RETURNS(1, cudaMemcpy((char *)large + 100 * MIB, host, 4 * MIB, TO_DEVICE));
    RETURNS(1, cudaFree((char *)large + 512));
    RETURNS(101, cudaSetDevice(1));

    /* WHEN everything is freed, THEN the free memory is that of the start, and a second free is an error */
    OK(cudaFree(large));
    RETURNS(1, cudaFree(large));
    OK(cudaFree(other));
    OK(cudaFree(managed));
    OK(cudaFree(pitched));
    OK(cudaFreeArray(array));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(NULL));
    CHECK(free - available() == 512);
    puts("ok");
    return 0;
}
