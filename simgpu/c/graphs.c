/* Captures and graphs: captured work is not executed, forbidden calls fail, and memory nodes hold memory. */
#include "check.h"

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaMallocAsync(void **, size_t, void *);
int cudaFreeAsync(void *, void *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaStreamIsCapturing(void *, int *);
int cudaStreamSynchronize(void *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaEventCreate(void **);
int cudaEventRecord(void *, void *);
int cudaEventQuery(void *);
int cudaThreadExchangeStreamCaptureMode(int *);
int cudaGraphCreate(void **, unsigned);
int cudaGraphGetNodes(void *, void **, size_t *);
int cudaGraphNodeGetType(void *, int *);
int cudaGraphInstantiate(void **, void *, unsigned long long);
int cudaGraphLaunch(void *, void *);
int cudaGraphDestroy(void *);
int cudaGraphExecDestroy(void *);
int cudaDeviceGraphMemTrim(int);
int cudaDeviceGetGraphMemAttribute(int, int, void *);
struct allocation {
    struct { int type, handles, location, id; void *win32; size_t max; char rest[56]; } pool;
    void *access; size_t count; size_t bytes; void *address;
};
int cudaGraphAddMemAllocNode(void **, void *, void *const *, size_t, struct allocation *);
int cudaGraphAddMemFreeNode(void **, void *, void *const *, size_t, void *);

enum { GLOBAL = 0, RELAXED = 2, TO_HOST = 2, USED = 0, RESERVED = 2 };

static size_t available(void) {
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    return free;
}

static uint64_t figure(int which) {
    uint64_t value;
    OK(cudaDeviceGetGraphMemAttribute(0, which, &value));
    return value;
}

int main(void) {
    void *block, *other, *stream, *side, *event, *joined, *graph, *run;
    OK(cudaMalloc(&block, MIB));
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaStreamCreateWithFlags(&side, 1));
    OK(cudaEventCreate(&event));
    OK(cudaEventCreate(&joined));
    unsigned char byte;
    int status;

    /* GIVEN a capture over two streams, WHEN memory is filled, THEN the fill is not executed and nodes are added */
    RETURNS(900, cudaStreamBeginCapture(NULL, GLOBAL));
    OK(cudaStreamBeginCapture(stream, GLOBAL));
    OK(cudaMemsetAsync(block, 1, MIB, stream));
    OK(cudaEventRecord(event, stream));
    RETURNS(907, cudaEventQuery(event));
    OK(cudaStreamWaitEvent(side, event, 0));
    OK(cudaStreamIsCapturing(side, &status));
    CHECK(status == 1);
    OK(cudaMemsetAsync(block, 2, MIB, side));
    OK(cudaEventRecord(joined, side));
    OK(cudaStreamWaitEvent(stream, joined, 0));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaMemcpy(&byte, block, 1, TO_HOST));
    CHECK(byte == 0);
    size_t count;
    OK(cudaGraphGetNodes(graph, NULL, &count));
    CHECK(count == 2);
    void *nodes[2];
    int kind;
    OK(cudaGraphGetNodes(graph, nodes, &count));
    OK(cudaGraphNodeGetType(nodes[0], &kind));
    CHECK(kind == 2);
    OK(cudaGraphDestroy(graph));

    /* GIVEN a capture, WHEN a forbidden call is made, THEN it fails and invalidates the capture */
    OK(cudaStreamBeginCapture(stream, GLOBAL));
    RETURNS(900, cudaMalloc(&other, MIB));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == 2);
    RETURNS(901, cudaMemsetAsync(block, 1, 1, stream));
    RETURNS(901, cudaStreamEndCapture(stream, &graph));
    CHECK(graph == NULL);
    OK(cudaStreamBeginCapture(stream, GLOBAL));
    RETURNS(900, cudaStreamSynchronize(stream));
    RETURNS(901, cudaStreamEndCapture(stream, &graph));

    /* AND a thread in relaxed capture mode may allocate */
    OK(cudaStreamBeginCapture(stream, GLOBAL));
    int mode = RELAXED;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == GLOBAL);
    OK(cudaMalloc(&other, MIB));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(other));

    /* AND a forked stream that is not joined is an error */
    OK(cudaStreamBeginCapture(stream, GLOBAL));
    OK(cudaEventRecord(event, stream));
    OK(cudaStreamWaitEvent(side, event, 0));
    OK(cudaMemsetAsync(block, 2, MIB, side));
    RETURNS(904, cudaStreamEndCapture(stream, &graph));

    /* GIVEN a graph that allocates and frees, WHEN it is created, THEN it has an address but holds no memory */
    size_t free = available();
    void *allocate, *release;
    struct allocation wanted = {.pool = {.type = 1, .location = 1}, .bytes = 64 * MIB};
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemAllocNode(&allocate, graph, NULL, 0, &wanted));
    CHECK(wanted.address != NULL);
    OK(cudaGraphAddMemFreeNode(&release, graph, &allocate, 1, wanted.address));
    OK(cudaGraphInstantiate(&run, graph, 0));
    CHECK(available() == free);
    /* WHEN it is launched, THEN the memory is reserved for graphs and stays reserved for the next launch */
    OK(cudaGraphLaunch(run, stream));
    OK(cudaGraphLaunch(run, stream));
    CHECK(free - available() == 64 * MIB);
    CHECK(figure(USED) == 0 && figure(RESERVED) == 64 * MIB);
    OK(cudaDeviceGraphMemTrim(0));
    CHECK(available() == free);
    OK(cudaGraphExecDestroy(run));
    OK(cudaGraphDestroy(graph));

    /* GIVEN a captured allocation that is not freed, WHEN the graph is launched, THEN the program must free it before the next launch */
    OK(cudaStreamBeginCapture(stream, GLOBAL));
    OK(cudaMallocAsync(&other, 32 * MIB, stream));
    RETURNS(1, cudaFreeAsync(block, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&run, graph, 0));
    OK(cudaGraphLaunch(run, stream));
    CHECK(figure(USED) == 32 * MIB);
    RETURNS(1, cudaGraphLaunch(run, stream));
    OK(cudaFreeAsync(other, stream));
    CHECK(figure(USED) == 0);
    OK(cudaGraphLaunch(run, stream));
    OK(cudaFree(other));
    OK(cudaDeviceGraphMemTrim(0));
    CHECK(available() == free);
    puts("ok");
    return 0;
}
