/* Prints the return code of each of several calls, for the tests of injected failures. */
#include "check.h"

int cudaMalloc(void **, size_t);
int cudaMemset(void *, int, size_t);
int cudaDeviceSynchronize(void);

int main(void) {
    void *block;
    for (int i = 0; i < 4; i++) printf("malloc %d\n", cudaMalloc(&block, MIB));
    printf("synchronize %d\n", cudaDeviceSynchronize());
    return 0;
}
