/* Opens and closes ranges with each of NVTX's functions, and allocates device memory so that a trace is written. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

static nvtxEventAttributes_t message(int type) {
    nvtxEventAttributes_t attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = type;
    return attributes;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
    unsigned long long address;
    void *context;
    if (init(0) || retain(&context, 0) || set(context) || allocate(&address, 1 << 20)) {
        return 1;
    }

    int depth = nvtxRangePushA("ascii");
    nvtxRangePushW(L"gr\u00f6\u00dfer");
    nvtxEventAttributes_t extended = message(NVTX_MESSAGE_TYPE_ASCII);
    extended.message.ascii = "extended";
    nvtxRangePushEx(&extended);

    nvtxDomainHandle_t own = nvtxDomainCreateA("own"), library = nvtxDomainCreateW(L"NCCL");
    nvtxEventAttributes_t registered = message(NVTX_MESSAGE_TYPE_REGISTERED);
    registered.message.registered = nvtxDomainRegisterStringA(own, "registered");
    nvtxDomainRangePushEx(own, &registered);
    nvtxDomainRangePushEx(library, &extended); /* Ranges of CUDA's libraries are not the program's. */
    nvtxDomainRangePop(library);
    nvtxRangePop();
    nvtxDomainRangePop(own);
    nvtxDomainRangePop(own); /* One too many. */
    nvtxDomainDestroy(own);
    nvtxRangePop();
    nvtxRangePop();
    nvtxRangePop(); /* One too many. */
    nvtxMarkA("no range");
    printf("%d\n", depth);
    return 0;
}
