/* Looks up CUDA's functions on a machine without CUDA, as programs with optional CUDA support do. Prints those it finds.
 *
 *   lookup default | next | program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
    static const char *names[] = {"cuMemAlloc_v2", "cuGetProcAddress_v2", "cuMemCreate", "cudaMalloc", "cudaFree"};
    if (count != 2) return 2;
    void *where = !strcmp(arguments[1], "default") ? RTLD_DEFAULT
                  : !strcmp(arguments[1], "next")  ? RTLD_NEXT
                                                   : dlopen(NULL, RTLD_LAZY);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dlerror();
        if (dlsym(where, names[i])) printf("found %s\n", names[i]);
        else if (!dlerror()) printf("no error for %s\n", names[i]);
    }
    puts("done");
    return 0;
}
