/* A program with a statically linked runtime: it finds the driver only by dlopen and cuGetProcAddress. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
static int (*get)(const char *, void **, int, uint64_t, int *);

static void *function(const char *name, int version, uint64_t flags) {
    void *found;
    int status = -1;
    OK(get(name, &found, version, flags, &status));
    CHECK(found != NULL && status == 0);
    return found;
}

static int (*mem_alloc)(address *, size_t);
static int (*mem_free)(address);
static int (*mem_info)(size_t *, size_t *);
static int (*set_current)(void *);
static int (*get_current)(void **);

static void *other_thread(void *context) {
    /* THEN another thread has no context until it sets one */
    address block;
    void *current = (void *)1;
    OK(get_current(&current));
    CHECK(current == NULL);
    RETURNS(201, mem_alloc(&block, 100));
    OK(set_current(context));
    OK(mem_alloc(&block, 100));
    OK(mem_free(block));
    return NULL;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    get = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    CHECK(get != NULL);

    /* GIVEN names and versions, WHEN they are looked up, THEN the matching function is returned */
    CHECK(function("cuMemAlloc", 12080, 0) == dlsym(driver, "cuMemAlloc_v2"));
    CHECK(function("cuMemFreeAsync", 12080, 2) == dlsym(driver, "cuMemFreeAsync_ptsz"));
    CHECK(function("cuMemcpyHtoD", 13000, 2) == dlsym(driver, "cuMemcpyHtoD_v2_ptds"));
    CHECK(function("cuStreamGetCaptureInfo", 11030, 0) == dlsym(driver, "cuStreamGetCaptureInfo_v2"));
    CHECK(function("cuStreamGetCaptureInfo", 13000, 0) == dlsym(driver, "cuStreamGetCaptureInfo_v3"));
    CHECK(function("cuGetProcAddress", 12000, 0) == dlsym(driver, "cuGetProcAddress_v2"));
    void *found = (void *)1;
    int status;
    RETURNS(500, get("cuMemAlloc_v2", &found, 13000, 0, &status)); /* plain names only */
    CHECK(found == NULL && status == 1);
    RETURNS(500, get("cuMemCreate", &found, 9000, 0, &status));
    CHECK(status == 2);

    mem_alloc = (int (*)(address *, size_t))function("cuMemAlloc", 12080, 0);
    mem_free = (int (*)(address))function("cuMemFree", 12080, 0);
    mem_info = (int (*)(size_t *, size_t *))function("cuMemGetInfo", 12080, 0);
    set_current = (int (*)(void *))function("cuCtxSetCurrent", 12080, 0);
    get_current = (int (*)(void **))function("cuCtxGetCurrent", 12080, 0);
    int (*init)(unsigned) = (int (*)(unsigned))function("cuInit", 12080, 0);
    int (*retain)(void **, int) = (int (*)(void **, int))function("cuDevicePrimaryCtxRetain", 12080, 0);
    int (*release)(int) = (int (*)(int))function("cuDevicePrimaryCtxRelease", 12080, 0);
    int (*state)(int, unsigned *, int *) = (int (*)(int, unsigned *, int *))function("cuDevicePrimaryCtxGetState", 12080, 0);

    /* WHEN calls are made before initialisation, THEN they return that error */
    address block;
    size_t free, total;
    void *context;
    RETURNS(3, mem_alloc(&block, 100));
    OK(init(0));
    RETURNS(201, mem_alloc(&block, 100));
    RETURNS(201, mem_info(&free, &total));
    unsigned flags;
    int active;
    OK(state(0, &flags, &active));
    CHECK(active == 0);

    /* WHEN the primary context is created, THEN it is charged to the card once */
    OK(retain(&context, 0));
    OK(retain(&context, 0));
    OK(set_current(context));
    OK(mem_info(&free, &total));
    CHECK(total - free == 256 * MIB);
    pthread_t thread;
    pthread_create(&thread, NULL, other_thread, context);
    pthread_join(thread, NULL);

    /* AND a forked child cannot use it */
    pid_t child = fork();
    if (child == 0) _exit(mem_alloc(&block, 100));
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);

    /* WHEN the context is destroyed, THEN its memory is freed */
    OK(mem_alloc(&block, 100 * MIB));
    OK(release(0));
    OK(release(0));
    RETURNS(709, mem_alloc(&block, 100));
    RETURNS(201, release(0));
    OK(retain(&context, 0));
    OK(set_current(context));
    OK(mem_info(&free, &total));
    CHECK(total - free == 256 * MIB);
    puts("ok");
    return 0;
}
