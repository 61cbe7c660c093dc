/* Functions of libmemlab.so for the process that has loaded it. Find them with dlsym(RTLD_DEFAULT, "memlab_…"): they
 * exist only if memlab is loaded. From outside, the control socket offers the same (docs/control.md).
 *
 * Each function may be called from any thread, with or without Python's GIL, but not from a CUDA host callback. None waits
 * for a lock of the program. Functions that can fail return 0 or -1. They write the reason to `error`, if that is not
 * NULL: at most `size` bytes with their terminating NUL. */
#ifndef MEMLAB_H
#define MEMLAB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves all movable device memory to host memory, and returns when that is done or has failed. A failure leaves
 * everything where it was. Afterwards every CUDA call of the program that uses device memory waits for memlab_restore.
 * One of its threads must remain free to call that, or it must be called from outside. Waits at most `timeout_s` seconds for
 * the program's GPU work to end. */
int memlab_offload(double timeout_s, char *error, size_t size);

/* Brings everything back to its previous addresses, and returns when that is done. Fails if the device has no room:
 * then everything stays in host memory, and the call may be repeated. If `free_host` is not 0, returns the pinned host
 * memory to the system; otherwise it is kept for reuse. */
int memlab_restore(double timeout_s, int free_host, char *error, size_t size);

/* Starts a search for what holds the device memory, and returns its number; 0 if none can be made. Its records
 * `holder_search` and `holders` (docs/trace-format.md) follow in the recording. The calling thread must hold Python's GIL, and
 * stands still for some milliseconds. */
uint32_t memlab_search_holders(char *error, size_t size);

/* Sets the limit of `device` (-1: all devices) to `bytes`; UINT64_MAX removes it. `spill`: 1, memory beyond the limit goes
 * to the host; 0, the allocation fails as on a card of that size; -1, as before. */
int memlab_limit(int device, uint64_t bytes, int spill, char *error, size_t size);

/* Writes the reply to the control socket's `status` request, JSON, as a string of at most `size` bytes with its NUL.
 * Returns the size of the complete reply with its NUL; 0 if no recording exists yet. */
size_t memlab_status(char *json, size_t size);

/* Position in the lines of a recording; zeros: its beginning. */
struct memlab_position {
    uint64_t recording;
    uint64_t bytes;
};

/* Copies the trace lines (docs/trace-format.md) recorded after `position` to `lines`, and moves the position behind them.
 * Returns the number of bytes copied: whole lines, of at most `size` bytes together; 0 if nothing is new. If it returns more
 * than `size`, nothing was copied: the next line needs that much room. Sets `restarted` to 1 if the lines after the position
 * are gone: the lines then begin with the whole state. If the process's driver memory has changed, first queries NVML for
 * the use of the cards. A process has one reader. */
size_t memlab_read(struct memlab_position *position, char *lines, size_t size, int *restarted);

/* Position after the last line recorded so far, in `bytes` of a memlab_position; 0 if no recording exists yet. */
uint64_t memlab_position(void);

/* Makes Python record the memory of each parameter, gradient, buffer and optimizer, the next time that its main thread
 * runs a bytecode. Does nothing without Python. */
void memlab_ask(void);

/* Continues the trace in the file `path` (as in MEMLAB_OUTPUT), which begins with the state so far; NULL: in memory. The
 * previous file is complete. */
int memlab_output(const char *path, char *error, size_t size);

/* Enters a range of this name (UTF-8) on the calling thread, inside its current range, until memlab_range_pop.
 * The thread's allocations count in its innermost range. Equivalent to an NVTX range, for programs without NVTX. */
void memlab_range_push(const char *name);

/* Adds the requests to PyTorch's allocator of `device` to the trace: `count` entries of six numbers, those of the record
 * `requests` in docs/trace-format.md. For `memlab plan`. */
void memlab_requests(int device, const uint64_t (*entries)[6], size_t count);

/* Training data of an optimizer step: the record `trained` of docs/trace-format.md. */
struct memlab_trained {
    uint64_t step;
    uint64_t epoch;
    uint64_t batch;
    uint64_t samples;
    uint64_t duration_ns;
    uint64_t pieces;
    uint64_t offloaded_bytes;
    double loss;
    int has_loss;
    const char *way;   /* UTF-8; NULL: unknown */
    const char *phase; /* UTF-8; NULL: a single model */
};

/* Number of optimizer steps that have ended in the recording; 0 if no recording exists yet. The index of the last step is
 * this number minus 1. */
uint64_t memlab_steps(void);

/* Adds the training data of a step to the recording. */
void memlab_trained(const struct memlab_trained *step);

/* Leaves the range that the calling thread entered last with memlab_range_push. */
void memlab_range_pop(void);

#ifdef __cplusplus
}
#endif
#endif
