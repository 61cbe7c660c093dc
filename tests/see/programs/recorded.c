/* Calls memlab's hook on PyTorch's block report, without PyTorch or a GPU.
 *
 *   recorded pairs LIVE COUNT THREADS    keeps LIVE blocks, then allocates and frees COUNT, on THREADS threads at once
 *   recorded pairs … BYTES               prints "grown" and waits for a line once the trace exceeds BYTES bytes
 *   recorded forks COUNT                 forks COUNT children, each of which frees a block of its parent
 *   recorded meets FOLDER                waits until two such programs have started, using files in FOLDER
 *
 * Waits until stdin is closed. Then prints the number of its descriptors of files called *.jsonl*, of its mappings of deleted
 * ones, and of the blocks of 512 bytes that these take. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recording.h"

extern void report(void *, int64_t, size_t, size_t, uint16_t)
    __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
#pragma weak report

static long count, pause_at;
static pthread_mutex_t pausing = PTHREAD_MUTEX_INITIALIZER;

/* Pauses all threads: the others block on the lock within a hundred pairs. */
static void pause_if_grown(void) {
    pthread_mutex_lock(&pausing);
    struct stat facts;
    int trace = pause_at ? open_trace() : -1;
    if (trace >= 0 && !fstat(trace, &facts) && facts.st_blocks * 512 > pause_at) {
        pause_at = 0;
        puts("grown");
        fflush(stdout);
        getchar();
    }
    if (trace >= 0) close(trace);
    pthread_mutex_unlock(&pausing);
}

static void *work(void *argument) {
    uintptr_t base = (uintptr_t)argument << 40;
    for (long i = 0; i < count; i++) {
        void *block = (void *)(base + (uintptr_t)(i % 64) * 512);
        report(block, 512, 0, 0, 1);
        report(block, -512, 0, 0, 1);
        if (i % 100 == 0) pause_if_grown();
        if (i % 1000 == 0) usleep(1000);
    }
    return NULL;
}

/* Prints the counts if `last`, or if only the trace itself is open; returns true if it printed. */
static int say_what_is_held(int last) {
    int descriptors = 0, mappings = 0;
    long deleted = 0;
    char line[4352];
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[300];
        snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(name, line, sizeof line - 1);
        if (length < 0) continue;
        line[length] = 0;
        struct stat found;
        descriptors += strstr(line, ".jsonl") != NULL;
        if (strstr(line, ".jsonl") && strstr(line, "(deleted)") && !stat(name, &found)) deleted += found.st_blocks;
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) mappings += strstr(line, ".jsonl") && strstr(line, "(deleted)");
    fclose(maps);
    closedir(folder);
    if (!last && (descriptors > 1 || mappings > 0)) return 0;
    printf("%d descriptors, %d mappings, %ld deleted\n", descriptors, mappings, deleted);
    return 1;
}

int main(int arguments, char **argument) {
    const char *what = arguments > 2 ? argument[1] : "";
    report((void *)8, 512, 0, 0, 1);
    if (!strcmp(what, "pairs") && arguments > 4) {
        long live = atol(argument[2]), threads = atol(argument[4]);
        count = atol(argument[3]);
        pause_at = arguments > 5 ? atol(argument[5]) : 0;
        for (uintptr_t i = 1; i <= (uintptr_t)live; i++) report((void *)(i << 20), 1 << 20, 0, 0, 1);
        pthread_t ids[64];
        for (uintptr_t i = 0; i < (uintptr_t)threads; i++) pthread_create(&ids[i], NULL, work, (void *)(i + 1));
        for (long i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    } else if (!strcmp(what, "forks")) {
        for (long left = atol(argument[2]); left > 0; left--) {
            pid_t child = fork();
            if (child == 0) {
                report((void *)8, -512, 0, 0, 1);
                exit(0);
            }
            waitpid(child, NULL, 0);
        }
    } else if (!strcmp(what, "meets")) {
        char path[512];
        snprintf(path, sizeof path, "%s/%d", argument[2], (int)getpid());
        fclose(fopen(path, "w"));
        for (int met = 0; met < 2; usleep(1000)) {
            DIR *folder = opendir(argument[2]);
            met = -2; /* "." and ".." */
            while (readdir(folder)) met++;
            closedir(folder);
        }
    } else {
        return 2;
    }
    while (getchar() != EOF) {}
    /* memlab releases replaced files in the background; only a hang takes ten minutes. */
    for (int left = 12000; !say_what_is_held(left == 0); left--) usleep(50000);
    return 0;
}
