/* Does something that a library in its process might break, while it allocates and frees GPU memory.
 *
 *   unharmed churn PAIRS         nothing else
 *   unharmed slowly              slowly, from the first line on stdin until that is closed
 *   unharmed exec                keeps 5 MiB, then becomes `unharmed churn 10`
 *   unharmed file-size           under a limit on the size of files
 *   unharmed address-space       under a limit on address space, most of which it uses itself
 *   unharmed both-limits         under both
 *   unharmed closefrom           closes every descriptor but the first three and opens its own files, own-0 …
 *   unharmed server              closes them too and opens its own sockets, own-0 …, until stdin is closed
 *
 * Prints the number of pairs of allocation and free at the end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "recording.h"

int cudaMalloc(void **, size_t), cudaFree(void *);

#define MIB ((size_t)1 << 20)
#define MANY 40000 /* Enough pairs for a trace of several MiB, which memlab extends several times. */
#define HIGHEST_DESCRIPTOR 1100

static long pairs;

static void fail(const char *what) {
    perror(what);
    exit(9);
}

static void churn(long count) {
    void *block;
    for (pairs += count; count > 0; count--)
        if (cudaMalloc(&block, 4096) || cudaFree(block)) fail("cudaMalloc");
}

static void say(const char *what) {
    puts(what);
    fflush(stdout);
}

static int told_to_end(int milliseconds) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, milliseconds) != 0;
}

static void limit(int resource, size_t bytes) {
    struct rlimit limits = {bytes, bytes};
    if (setrlimit(resource, &limits)) fail("setrlimit");
}

static int own_file(int number) {
    char name[32];
    snprintf(name, sizeof name, "own-%d", number);
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, "mine", 4) != 4) fail(name);
    return file;
}

static int own_socket(int number) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "own-%d", number);
    int server = socket(AF_UNIX, SOCK_STREAM, 0);
    if (server < 0 || bind(server, (void *)&address, sizeof address) || listen(server, 1)) fail(address.sun_path);
    return server;
}

/* Opens enough descriptors to reuse each one that was open before. */
static void replace_descriptors(int (*open_own)(int)) {
    churn(1);
    /* The control thread opens its socket and NVML's files before it samples the card. */
    while (!is_recorded("\n[\"used\",")) usleep(10000);
    closefrom(3);
    for (int number = 0; open_own(number) < HIGHEST_DESCRIPTOR; number++) {}
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "churn")) {
        churn(atol(arguments[2]));
    } else if (!strcmp(what, "slowly")) {
        char line[8];
        churn(1);
        say("ready");
        if (read(0, line, sizeof line) > 0)
            while (!told_to_end(1)) churn(200);
        churn(MANY);
    } else if (!strcmp(what, "exec")) {
        void *block;
        if (cudaMalloc(&block, 5 * MIB)) fail("cudaMalloc");
        execl("/proc/self/exe", arguments[0], "churn", "10", NULL);
        fail("exec");
    } else if (!strcmp(what, "file-size")) {
        limit(RLIMIT_FSIZE, 2 * MIB);
        churn(MANY);
    } else if (!strcmp(what, "address-space")) {
        limit(RLIMIT_AS, 6144 * MIB);
        churn(1000);
        if (!malloc(4096 * MIB)) fail("malloc");
    } else if (!strcmp(what, "both-limits")) {
        limit(RLIMIT_FSIZE, 2 * MIB);
        limit(RLIMIT_AS, 4096 * MIB);
        churn(MANY);
    } else if (!strcmp(what, "closefrom")) {
        replace_descriptors(own_file);
        churn(MANY);
    } else if (!strcmp(what, "server")) {
        replace_descriptors(own_socket);
        say("ready");
        told_to_end(-1);
    } else {
        return 2;
    }
    printf("%ld pairs\n", pairs);
    return 0;
}
