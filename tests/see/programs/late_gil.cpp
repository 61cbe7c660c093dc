// Takes the GIL in a function that must not be unwound, as soon as the interpreter shuts down. Autograd's threads do this
// occasionally.
#include <unistd.h>

extern "C" int PyGILState_Ensure();
extern "C" int is_finalizing() __asm__("_Py_IsFinalizing");
#pragma weak is_finalizing

extern "C" void take_gil_at_the_end() noexcept {
    if (!is_finalizing) return;  // CPython 3.13 and newer
    while (!is_finalizing()) usleep(1000);
    PyGILState_Ensure();
}
