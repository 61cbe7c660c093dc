/* Several processes on one card: shared memory, accounting of all processes, and freeing the memory of dead ones. */
#include "check.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemGetInfo(size_t *, size_t *);
struct handle { char bytes[64]; };
int cudaIpcGetMemHandle(struct handle *, void *);
int cudaIpcOpenMemHandle(void **, struct handle, unsigned);
int cudaIpcCloseMemHandle(void *);

enum { TO_DEVICE = 1, TO_HOST = 2 };
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };

static size_t available(void) {
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    return free;
}

/* The other process: opens the memory, checks and changes it, allocates memory, and waits. */
static int other(void) {
    struct handle handle;
    unsigned char *data = malloc(4 * MIB);
    void *shared, *again, *own;
    CHECK(read(0, &handle, sizeof handle) == sizeof handle);
    OK(cudaIpcOpenMemHandle(&shared, handle, 1));
    OK(cudaIpcOpenMemHandle(&again, handle, 1));
    CHECK(again == shared);
    OK(cudaIpcCloseMemHandle(again));
    OK(cudaMemcpy(data, shared, 4 * MIB, TO_HOST));
    CHECK(has_pattern(data, 4 * MIB, 1));
    pattern(data, 4 * MIB, 2);
    OK(cudaMemcpy(shared, data, 4 * MIB, TO_DEVICE));
    OK(cudaIpcCloseMemHandle(shared));
    RETURNS(1, cudaIpcCloseMemHandle(shared));
    OK(cudaMalloc(&own, GIB));
    CHECK(write(1, "x", 1) == 1);
    pause();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return other();

    /* GIVEN memory with data, and its handle */
    unsigned char *data = malloc(4 * MIB), go;
    void *block;
    struct handle handle;
    pattern(data, 4 * MIB, 1);
    OK(cudaMalloc(&block, 4 * MIB));
    OK(cudaMemcpy(block, data, 4 * MIB, TO_DEVICE));
    OK(cudaIpcGetMemHandle(&handle, block));
    void *mine;
    RETURNS(201, cudaIpcOpenMemHandle(&mine, handle, 1));
    size_t free = available();

    /* WHEN another process opens it and writes */
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(there[0], 0);
        dup2(back[1], 1);
        execl("/proc/self/exe", argv[0], "other", NULL);
        _exit(1);
    }
    CHECK(write(there[1], &handle, sizeof handle) == sizeof handle);
    close(back[1]);
    CHECK(read(back[0], &go, 1) == 1);

    /* THEN this process sees the bytes, and the card counts what the other process allocated, but the shared memory only once */
    OK(cudaMemcpy(data, block, 4 * MIB, TO_HOST));
    CHECK(has_pattern(data, 4 * MIB, 2));
    CHECK(free - available() == GIB + 256 * MIB);

    /* AND NVML lists both processes with the memory that they hold */
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CHECK(nvml != NULL);
    int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*running)(void *, unsigned *, struct process *) =
        (int (*)(void *, unsigned *, struct process *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    void *device;
    struct process list[8];
    unsigned count = 1;
    RETURNS(1, by_index(0, &device));
    OK(init());
    OK(by_index(0, &device));
    RETURNS(7, running(device, &count, list));
    CHECK(count == 2);
    count = 8;
    OK(running(device, &count, list));
    CHECK(count == 2);
    for (unsigned i = 0; i < count; i++) {
        if (list[i].pid == (unsigned)child) CHECK(list[i].used == GIB + 256 * MIB);
        else CHECK(list[i].pid == (unsigned)getpid() && list[i].used == 260 * MIB);
    }

    /* AND 7 GiB do not fit until the other process is killed */
    void *large;
    RETURNS(2, cudaMalloc(&large, 7 * GIB));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(available() == free);
    OK(cudaMalloc(&large, 7 * GIB));
    OK(cudaFree(large));
    OK(cudaFree(block));
    puts("ok");
    return 0;
}
