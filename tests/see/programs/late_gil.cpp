// Takes the GIL in a function that must not be unwound, as soon as the interpreter shuts down. Autograd's threads do this
// occasionally.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <unistd.h>

extern "C" int PyGILState_Ensure();
extern "C" int is_finalizing() __asm__("_Py_IsFinalizing");
#pragma weak is_finalizing

static std::atomic<int> thread;

extern "C" void take_gil_at_the_end() noexcept {
    if (is_finalizing) {  // CPython before 3.13
        while (!is_finalizing()) usleep(1000);
        thread = gettid();
        PyGILState_Ensure();
    }
    thread = -1;
}

// Returns true once the thread waits in pause(), where the simulated card keeps it, or has returned.
extern "C" int is_stuck() {
    if (thread <= 0) return thread;
    char path[64], call[8] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread.load());
    FILE *file = fopen(path, "r");
    int read = file ? fscanf(file, "%7s", call) : 0;
    if (file) fclose(file);
    return !file || (read == 1 && !strcmp(call, "34"));
}
