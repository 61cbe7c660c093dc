/* A program whose driver injects a library as NVIDIA's does: host LIBRARY (or nothing, with it preloaded). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments) {
    const char *path = count > 1 ? arguments[1] : getenv("CUDA_INJECTION64_PATH");
    if (!path) return puts("nothing to inject"), 0;
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    int (*inject)(void) = (int (*)(void))dlsym(library, "InitializeInjection");
    if (!inject || !inject() || !inject()) return 3;
    if (fork() == 0) exit(0); /* A child that ends writes nothing. */
    return 0;
}
