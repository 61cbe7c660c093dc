/* A CUPTI that delivers four records, laid out by hand as those of CUDA 13 (CUpti_ActivityMemory4, 128 bytes). It hands
 * them over when it is flushed, and answers a second kind with an error. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct record {
    uint32_t kind, operation, memory, correlation;
    uint64_t address, bytes, time, program_counter;
    uint32_t process, device, context, stream;
    const char *name;
    uint32_t is_async, padding;
    uint64_t pool[5];
    const char *source;
};
_Static_assert(sizeof(struct record) == 128, "as CUPTI's");

enum { MEMORY2 = 49, ALLOCATION = 1, RELEASE = 2, PINNED = 2, DEVICE = 3, OTHER_KIND = 7 };
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static int enabled;

int cuptiGetVersion(uint32_t *version) { return *version = 130401, 0; }
int cuptiActivityRegisterCallbacks(void *wanted, void *done) {
    request = (void (*)(uint8_t **, size_t *, size_t *))wanted;
    complete = (void (*)(void *, uint32_t, uint8_t *, size_t, size_t))done;
    return 0;
}
int cuptiActivityEnable(uint32_t kind) { return kind == MEMORY2 ? (enabled = 1, 0) : 21; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    return context || stream ? 1 : (*dropped = 3, 0);
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    uint8_t *next = *record ? *record + sizeof(struct record) : buffer;
    return next + sizeof(struct record) > buffer + valid ? 12 : (*record = next, 0);
}
int cuptiActivityFlushAll(uint32_t flag) {
    static const struct record told[] = {
        {.kind = MEMORY2, .operation = ALLOCATION, .memory = DEVICE, .address = 4096, .bytes = 1000, .time = 5},
        {.kind = MEMORY2, .operation = ALLOCATION, .memory = DEVICE, .address = 8192, .bytes = 64, .time = 6, .device = 1,
         .is_async = 1},
        {.kind = OTHER_KIND, .operation = ALLOCATION, .memory = DEVICE, .address = 1, .bytes = 1},
        {.kind = MEMORY2, .operation = ALLOCATION, .memory = PINNED, .address = 12288, .bytes = 512, .time = 7},
        {.kind = MEMORY2, .operation = RELEASE, .memory = DEVICE, .address = 4096, .bytes = 1000, .time = 8},
    };
    uint8_t *buffer;
    size_t size, most;
    if (!enabled || flag != 1) return 1;
    request(&buffer, &size, &most);
    if (!buffer || (uintptr_t)buffer % 8 || size < sizeof told || most) return 8;
    memcpy(buffer, told, sizeof told);
    complete(NULL, 0, buffer, size, sizeof told);
    return 0;
}
