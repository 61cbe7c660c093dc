/* A clock for tests, to be preloaded: sleeps end at once and are printed. The third sleep of an hour kills the program. */
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int pass(const struct timespec *time) {
    static int hours;
    long ms = time->tv_sec * 1000 + time->tv_nsec / 1000000;
    fprintf(stderr, "clock: %ld ms\n", ms);
    if (ms >= 3600000 && ++hours == 3) kill(getpid(), SIGKILL);
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left) {
    (void)left;
    return pass(time);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    (void)clock, (void)flags, (void)left;
    return pass(time);
}
