/* A library of arrays: memory straight from the driver, as CuPy, Numba and JAX take it. */
#include <dlfcn.h>
#include <stddef.h>

static void *driver(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }

/* The address; 0 if the driver refuses. */
unsigned long take(size_t bytes) {
    int (*allocate)(unsigned long *, size_t) = (int (*)(unsigned long *, size_t))driver("cuMemAlloc_v2");
    unsigned long address = 0;
    return allocate(&address, bytes) ? 0 : address;
}

int give_back(unsigned long address) {
    int (*give)(unsigned long) = (int (*)(unsigned long))driver("cuMemFree_v2");
    return give(address);
}

/* A context of the first device, for programs without PyTorch. */
int begin(void) {
    int (*initialise)(unsigned) = (int (*)(unsigned))driver("cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))driver("cuDevicePrimaryCtxRetain");
    int (*enter)(void *) = (int (*)(void *))driver("cuCtxSetCurrent");
    void *context = NULL;
    int failed = initialise(0);
    failed = failed ? failed : retain(&context, 0);
    return failed ? failed : enter(context);
}
