/* What libmemlab.so does when asked from inside the process it is loaded into. Find the functions with
 * dlsym(RTLD_DEFAULT, "memlab_…"): they are there exactly if memlab is. From outside, the control socket offers the same
 * (docs/control.md).
 *
 * Each may be called from any thread, with or without Python's GIL, but not from a CUDA host callback. None of them waits
 * for a lock of the program's. Functions that can fail return 0 or -1; the reason is written to `error`, if that is not
 * NULL: at most `size` bytes with their terminating NUL. */
#ifndef MEMLAB_H
#define MEMLAB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves all device memory that can be moved to host memory, and returns when that is done or has failed, which leaves
 * everything where it was. Afterwards every CUDA call of the program that uses device memory waits for memlab_restore;
 * one of its threads must be left to call that, or somebody outside. Waits at most `timeout_s` seconds for the program's
 * GPU work to come to its end. */
int memlab_offload(double timeout_s, char *error, size_t size);

/* Brings everything back to the addresses where it was, and returns when that is done. Fails if the device has no room:
 * then everything stays in host memory, and it may be called again. With `free_host` not 0 the pinned host memory, which is
 * otherwise kept for the next time, is given back to the system. */
int memlab_restore(double timeout_s, int free_host, char *error, size_t size);

/* Gives `device` (-1: all devices) a limit of `bytes`; UINT64_MAX takes it away. `spill`: 1, what exceeds it goes to host
 * memory; 0, it fails as on a card of that size; -1, as before. */
int memlab_limit(int device, uint64_t bytes, int spill, char *error, size_t size);

/* Writes the reply to the control socket's `status` request, JSON, as a string of at most `size` bytes with its NUL, and
 * returns the bytes that all of it takes with its NUL; 0 if nothing is recorded yet. */
size_t memlab_status(char *json, size_t size);

/* A position in the lines of a recording; zeros: its beginning. */
struct memlab_position {
    uint64_t recording;
    uint64_t bytes;
};

/* Copies the lines of the trace (docs/trace-format.md) that were recorded after `position` to `lines`, moves the position
 * behind them, and returns how many bytes they are: whole lines, of at most `size` bytes together; 0 if there is nothing
 * new. If it returns more than `size`, nothing was copied: the next line needs that much room. Sets `restarted` to 1 if
 * what followed the position is gone: the lines then begin with the whole state. If the process's driver memory has changed,
 * NVML is asked for the use of the cards first. There is one reader in a process. */
size_t memlab_read(struct memlab_position *position, char *lines, size_t size, int *restarted);

/* The position after the last line recorded so far, in `bytes` of a memlab_position; 0 if nothing is recorded yet. */
uint64_t memlab_position(void);

/* Has Python say which memory belongs to which parameter, gradient, buffer and optimizer, the next time that its main thread
 * runs a bytecode. Without Python, nothing. */
void memlab_ask(void);

/* The trace continues in the file `path` (as in MEMLAB_OUTPUT), which begins with the state until now; NULL: in memory. The
 * file it was in until now is complete. */
int memlab_output(const char *path, char *error, size_t size);

/* The calling thread enters a range of this name (UTF-8), inside the range that it is in already, until memlab_range_pop.
 * What the thread allocates counts in its innermost range. The same as an NVTX range, for programs without NVTX. */
void memlab_range_push(const char *name);

/* Adds what PyTorch's allocator of `device` was asked for to the trace: `count` entries of six numbers, those of the record
 * `requests` in docs/trace-format.md. For `memlab plan`. */
void memlab_requests(int device, const uint64_t (*entries)[6], size_t count);

/* What a training did in an optimizer step: the record `trained` of docs/trace-format.md. */
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
    const char *way;   /* UTF-8; NULL: not known */
    const char *phase; /* UTF-8; NULL: there is one model */
};

/* The optimizer steps that have ended in the recording; 0 if nothing is recorded yet. The last of them has this number less 1
 * as its index. */
uint64_t memlab_steps(void);

/* Adds what a training did in a step to the recording. */
void memlab_trained(const struct memlab_trained *step);

/* The calling thread leaves the range that it entered last with memlab_range_push. */
void memlab_range_pop(void);

#ifdef __cplusplus
}
#endif
#endif
