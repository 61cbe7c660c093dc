/* GIVEN the libraries that a program has loaded, WHEN it asks cuDNN for its version, THEN the version matches them. */
#include "check.h"
#include <dlfcn.h>

int main(int count, char **libraries) {
    for (int i = 1; i < count; i++)
        CHECK(dlopen(libraries[i], RTLD_NOW) != NULL);
    size_t (*version)(void) = dlsym(RTLD_DEFAULT, "cudnnGetVersion");
    int (*property)(int, int *) = dlsym(RTLD_DEFAULT, "cudnnGetProperty");
    int major = 0;
    CHECK(version != NULL && property != NULL);
    OK(property(0, &major));
    printf("%zu %d\n", version(), major);
    return 0;
}
