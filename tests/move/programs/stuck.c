/* Preloaded library: ends sleeps of a minute and longer once the file STUCK_UNTIL exists. With SIMGPU_HANG_SYNC the
 * synchronizations of the simulated GPU hang in such a sleep. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    const char *until = getenv("STUCK_UNTIL");
    if (!until || flags || time->tv_sec < 60) return syscall(SYS_clock_nanosleep, clock, flags, time, left) ? errno : 0;
    while (access(until, F_OK)) usleep(1000);
    return 0;
}
