/* A fake CUDA driver with only the checkpoint functions. Files in $FAKE_CUDA: `state`, the state of the process; `log`, the calls;
   `fail-NAME`, the number of calls of NAME that fail; `code-NAME`, their error code. -DOLD: a driver without checkpoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_in(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA"), name);
    return fopen(path, mode);
}

static int read_number(const char *name, int otherwise) {
    FILE *file = open_in(name, "r");
    if (file) {
        if (fscanf(file, "%d", &otherwise) != 1) otherwise = 0;
        fclose(file);
    }
    return otherwise;
}

static void write_number(const char *name, int number) {
    FILE *file = open_in(name, "w");
    fprintf(file, "%d", number);
    fclose(file);
}

static void note(const char *line) {
    FILE *file = open_in("log", "a");
    fprintf(file, "%s\n", line);
    fclose(file);
}

/* The return code of a call of this name. */
static int result(const char *call) {
    char fail[64], code[64];
    snprintf(fail, sizeof fail, "fail-%s", call);
    snprintf(code, sizeof code, "code-%s", call);
    int left = read_number(fail, 0);
    if (left == 0) return 0;
    write_number(fail, left - 1);
    return read_number(code, 1);
}

int cuInit(unsigned flags) { return flags; }

int cuDriverGetVersion(int *version) {
    *version = 12040;
    return 0;
}

int cuGetErrorName(int code, const char **text) {
    *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 2 ? "out of memory" : code == 801 ? "operation not supported" : "invalid \033[2J argument";
    return 0;
}

#ifndef OLD
struct lock_arguments {
    unsigned timeout_ms, reserved0;
    unsigned long long reserved1[7];
};

int cuCheckpointProcessGetState(int pid, int *state) {
    (void)pid;
    *state = read_number("state", 0);
    return result("state");
}

static int act(const char *name, int from, int to) {
    note(name);
    int code = result(name);
    if (code) return code;
    if (read_number("state", 0) != from) return 1;
    write_number("state", to);
    return 0;
}

int cuCheckpointProcessLock(int pid, struct lock_arguments *arguments) {
    (void)pid;
    char line[64];
    unsigned long long reserved = arguments->reserved0;
    for (int index = 0; index < 7; index++) reserved |= arguments->reserved1[index];
    snprintf(line, sizeof line, "timeout %u, reserved %llu", arguments->timeout_ms, reserved);
    note(line);
    return act("lock", 0, 1);
}

int cuCheckpointProcessCheckpoint(int pid, void *arguments) { return (void)pid, arguments ? 1 : act("checkpoint", 1, 2); }
int cuCheckpointProcessRestore(int pid, void *arguments) { return (void)pid, arguments ? 1 : act("restore", 2, 1); }
int cuCheckpointProcessUnlock(int pid, void *arguments) { return (void)pid, arguments ? 1 : act("unlock", 1, 0); }
#endif
