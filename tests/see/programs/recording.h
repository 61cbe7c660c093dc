/* Reads the trace that memlab writes of this process. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens the trace that this process has mapped; returns -1 if it has none. */
static inline int open_trace(void) {
    char line[4352];
    int trace = -1;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && trace < 0 && fgets(line, sizeof line, maps)) {
        line[strcspn(line, "\n")] = 0;
        char *path = strchr(line, '/');
        if (path && strstr(path, ".jsonl")) trace = open(path, O_RDONLY);
    }
    if (maps) fclose(maps);
    return trace;
}

/* Returns true if the trace contains the text. */
static inline int is_recorded(const char *text) {
    struct stat facts;
    int trace = open_trace(), found = 0;
    if (trace >= 0 && !fstat(trace, &facts) && facts.st_size) {
        void *bytes = mmap(NULL, facts.st_size, PROT_READ, MAP_PRIVATE, trace, 0);
        found = bytes != MAP_FAILED && memmem(bytes, facts.st_size, text, strlen(text));
        if (bytes != MAP_FAILED) munmap(bytes, facts.st_size);
    }
    if (trace >= 0) close(trace);
    return found;
}
