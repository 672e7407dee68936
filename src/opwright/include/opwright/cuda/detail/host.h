// The host's run-time interface, and what the rewritten launches and variables turn into.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "../../call.h"
#include "device.h"

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidHostPointer = 16,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorMissingConfiguration = 52,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchTimeout = 702,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorPeerAccessNotEnabled = 705,
    cudaErrorAssert = 710,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999
};
typedef cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize };
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrTotalConstantMemory = 9,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82,
    cudaDevAttrManagedMemory = 83,
    cudaDevAttrConcurrentManagedAccess = 89,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106
};
enum cudaMemoryAdvise { cudaMemAdviseSetReadMostly = 1, cudaMemAdviseUnsetReadMostly, cudaMemAdviseSetPreferredLocation,
                        cudaMemAdviseUnsetPreferredLocation, cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy };

#define cudaCpuDeviceId (-1)
#define cudaMemAttachGlobal 1u
#define cudaMemAttachHost 2u
#define cudaHostAllocDefault 0u
#define cudaHostAllocPortable 1u
#define cudaHostAllocMapped 2u
#define cudaHostAllocWriteCombined 4u
#define cudaHostRegisterDefault 0u
#define cudaStreamDefault 0u
#define cudaStreamNonBlocking 1u
#define cudaEventDefault 0u
#define cudaEventBlockingSync 1u
#define cudaEventDisableTiming 2u
#define cudaOccupancyDefault 0u
#define cudaDeviceScheduleAuto 0u
#define cudaDeviceScheduleSpin 1u
#define cudaDeviceScheduleYield 2u
#define cudaDeviceScheduleBlockingSync 4u
#define cudaDeviceMapHost 8u

struct CUstream_st;
struct CUevent_st;
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))

struct cudaDeviceProp {
    char name[256];
    std::size_t totalGlobalMem;
    std::size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    std::size_t memPitch;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int clockRate;
    std::size_t totalConstMem;
    int major;
    int minor;
    int deviceOverlap;
    int multiProcessorCount;
    int integrated;
    int canMapHostMemory;
    int computeMode;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int asyncEngineCount;
    int unifiedAddressing;
    int memoryClockRate;
    int memoryBusWidth;
    int l2CacheSize;
    int maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported;
    std::size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    int managedMemory;
    int concurrentManagedAccess;
    int cooperativeLaunch;
    std::size_t sharedMemPerBlockOptin;
    int maxBlocksPerMultiProcessor;
};

struct cudaFuncAttributes {
    std::size_t sharedSizeBytes;
    std::size_t constSizeBytes;
    std::size_t localSizeBytes;
    int maxThreadsPerBlock;
    int numRegs;
    int ptxVersion;
    int binaryVersion;
    int maxDynamicSharedSizeBytes;
};

namespace opw {

// Stands for 0 and NULL among the arguments of a launch, which a forwarded int could not.
struct Zero {
    template <class T, class = std::enable_if_t<std::is_scalar_v<T>>> operator T() const { return T(); }
};

// Variables in this section lie in the order of their declarations.
#if defined(__clang__)
#define OPW_IN_ORDER(name) __attribute__((section(name), used))
#else
#define OPW_IN_ORDER(name) __attribute__((section(name), used, no_reorder))
#endif
// Elements of the gap behind a device variable: as many bytes as it has, from 4 KiB to 1 MiB.
#define OPW_GAP(variable, element) \
    (((variable) < 4096 ? 4096 : (variable) > 1048576 ? 1048576 : (variable)) / (element) + 1)

enum class VariableKind : int { device, constant, managed };
// One __device__, __constant__ or __managed__ variable, announced before main.
struct Variable {
    OPW_API Variable(const volatile void* address, std::size_t size, const volatile void* gap, std::size_t gap_size,
                     const char* name, VariableKind kind, const char* file, int line);
};

struct LaunchRequest {
    dim3 grid;
    dim3 block;
    std::size_t shared;
    const char* name;
    const char* file;
    int line;
    bool cooperative;
    void (*body)(void* arguments);  // one thread's work
    void* arguments;
    cudaStream_t stream;
};
// Whether work may be put into this stream; a finding at the noted call when it may not.
OPW_API cudaError_t check_stream(cudaStream_t stream);
OPW_API cudaError_t launch(const LaunchRequest& request);
OPW_API void note_call(const char* file, int line, const char* arguments);
// For programs that serve requests. An allocation of this name that begins `lead` bytes (less than a
// page) behind a page's start; and a new time limit, from now on, or none when it is 0.
OPW_API cudaError_t place(void** pointer, std::size_t size, std::size_t lead, const char* name);
OPW_API void limit_time(double seconds);
// Serves launches of one kernel until standard input ends (see core/serve.cpp); a program's exit code.
OPW_API int serve(void (*launch)(dim3 grid, dim3 block, void* const* tensors, const Value* values),
                  const char* const* names, std::size_t tensors);
OPW_API cudaError_t to_symbol(const void* symbol, const void* from, std::size_t size, std::size_t offset,
                              cudaMemcpyKind kind, cudaStream_t stream = nullptr, bool async = false);
OPW_API cudaError_t from_symbol(void* to, const void* symbol, std::size_t size, std::size_t offset,
                                cudaMemcpyKind kind, cudaStream_t stream = nullptr, bool async = false);
OPW_API cudaError_t symbol_address(void** address, const void* symbol);
OPW_API cudaError_t symbol_size(std::size_t* size, const void* symbol);
OPW_API cudaError_t set_attribute(const char* kernel, cudaFuncAttribute attribute, int value);
OPW_API cudaError_t attributes_of(cudaFuncAttributes* attributes, const char* kernel);
OPW_API cudaError_t occupancy(int* blocks, const char* kernel, int threads, std::size_t shared);
OPW_API cudaError_t best_block_size(int* grid, int* block, const char* kernel, std::size_t shared, int limit);

// kernel<<<grid, block, shared, stream>>>(arguments) becomes
// opw::Launch(file, line, "kernel", grid, block, shared, stream).run(caller, arguments).
class Launch {
public:
    Launch(const char* file, int line, const char* name, dim3 grid, dim3 block, std::size_t shared = 0,
           cudaStream_t stream = nullptr)
        : request_{grid, block, shared, name, file, line, false, nullptr, nullptr, stream} {}

    // `call` calls the kernel with the arguments, once a thread. Plain data is copied here; an object
    // that converts itself to what the kernel takes is referred to, for the launch ends before it.
    template <class Call, class... Arguments> void run(const Call& call, Arguments&&... arguments) {
        using Tuple = std::tuple<const Call*, Held<Arguments>...>;
        Tuple tuple(&call, std::forward<Arguments>(arguments)...);
        request_.arguments = &tuple;
        request_.body = &enter<Tuple>;
        launch(request_);
    }

private:
    template <class T>
    using Held = std::conditional_t<std::is_lvalue_reference_v<T> && !std::is_array_v<std::remove_reference_t<T>> &&
                                        std::is_class_v<std::decay_t<T>> && !std::is_trivially_copyable_v<std::decay_t<T>>,
                                    T, std::decay_t<T>>;
    template <class Tuple> OPW_UNTRACED static void enter(void* arguments) {
        std::apply([](const auto* call, auto&... values) OPW_UNTRACED { (*call)(values...); },
                   *static_cast<Tuple*>(arguments));
    }
    LaunchRequest request_;
};

template <class... Parameters, std::size_t... index>
cudaError_t launch_pointers(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                            std::size_t shared, cudaStream_t stream, bool cooperative, std::index_sequence<index...>) {
    struct Pack {
        void (*kernel)(Parameters...);
        std::tuple<std::decay_t<Parameters>...> values;
    };
    Pack pack{kernel, {*static_cast<std::decay_t<Parameters>*>(arguments[index])...}};
    LaunchRequest request{grid, block, shared, "", "", 0, cooperative, nullptr, &pack, stream};
    request.body = [](void* raw) OPW_UNTRACED {
        Pack& p = *static_cast<Pack*>(raw);
        p.kernel(std::get<index>(p.values)...);
    };
    return launch(request);
}

}  // namespace opw

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared = 0, cudaStream_t stream = nullptr) {
    return ::opw::launch_pointers(kernel, grid, block, arguments, shared, stream, false,
                                  std::index_sequence_for<Parameters...>());
}
template <class... Parameters>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared = 0, cudaStream_t stream = nullptr) {
    return ::opw::launch_pointers(kernel, grid, block, arguments, shared, stream, true,
                                  std::index_sequence_for<Parameters...>());
}

extern "C" {
OPW_API cudaError_t cudaMalloc(void** pointer, std::size_t size);
OPW_API cudaError_t cudaFree(void* pointer);
OPW_API cudaError_t cudaMallocHost(void** pointer, std::size_t size);
OPW_API cudaError_t cudaFreeHost(void* pointer);
OPW_API cudaError_t cudaHostAlloc(void** pointer, std::size_t size, unsigned flags);
OPW_API cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
OPW_API cudaError_t cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width, std::size_t height);
OPW_API cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind);
OPW_API cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                 std::size_t width, std::size_t height, cudaMemcpyKind kind);
OPW_API cudaError_t cudaMemset(void* pointer, int value, std::size_t size);
OPW_API cudaError_t cudaMemset2D(void* pointer, std::size_t pitch, int value, std::size_t width, std::size_t height);
OPW_API cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total);
OPW_API cudaError_t cudaGetLastError(void);
OPW_API cudaError_t cudaPeekAtLastError(void);
OPW_API const char* cudaGetErrorString(cudaError_t error);
OPW_API const char* cudaGetErrorName(cudaError_t error);
OPW_API cudaError_t cudaDeviceSynchronize(void);
OPW_API cudaError_t cudaDeviceReset(void);
OPW_API cudaError_t cudaGetDevice(int* device);
OPW_API cudaError_t cudaSetDevice(int device);
OPW_API cudaError_t cudaGetDeviceCount(int* count);
OPW_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
OPW_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
OPW_API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
OPW_API cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                                    cudaStream_t stream = nullptr);
OPW_API cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                      std::size_t width, std::size_t height, cudaMemcpyKind kind,
                                      cudaStream_t stream = nullptr);
OPW_API cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t size, cudaStream_t stream = nullptr);
OPW_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
OPW_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
OPW_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data);
OPW_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
OPW_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
OPW_API cudaError_t cudaEventCreate(cudaEvent_t* event);
OPW_API cudaError_t cudaEventDestroy(cudaEvent_t event);
OPW_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
OPW_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
OPW_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop);
}

template <class T> cudaError_t cudaMalloc(T** pointer, std::size_t size) {
    return ::cudaMalloc(reinterpret_cast<void**>(pointer), size);
}
template <class T> cudaError_t cudaMallocHost(T** pointer, std::size_t size, unsigned = 0) {
    return ::cudaMallocHost(reinterpret_cast<void**>(pointer), size);
}
template <class T> cudaError_t cudaHostAlloc(T** pointer, std::size_t size, unsigned flags) {
    return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), size, flags);
}
template <class T> cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
    return ::cudaHostGetDevicePointer(reinterpret_cast<void**>(device), host, flags);
}
template <class T> cudaError_t cudaMallocPitch(T** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
    return ::cudaMallocPitch(reinterpret_cast<void**>(pointer), pitch, width, height);
}
OPW_API cudaError_t opw_malloc_managed(void** pointer, std::size_t size);
template <class T> cudaError_t cudaMallocManaged(T** pointer, std::size_t size, unsigned = cudaMemAttachGlobal) {
    return opw_malloc_managed(reinterpret_cast<void**>(pointer), size);
}
template <class T> cudaError_t cudaMallocAsync(T** pointer, std::size_t size, cudaStream_t stream) {
    const cudaError_t error = ::opw::check_stream(stream);
    return error != cudaSuccess ? error : ::cudaMalloc(reinterpret_cast<void**>(pointer), size);
}
inline cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, int, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
inline cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaErrorNotSupported; }

template <class T> cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* from, std::size_t size,
                                                  std::size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
    return ::opw::to_symbol((const void*)&symbol, from, size, offset, kind);
}
template <class T> cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* from, std::size_t size,
                                                       std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
    const cudaError_t error = ::opw::check_stream(stream);
    return error != cudaSuccess ? error : ::opw::to_symbol((const void*)&symbol, from, size, offset, kind, stream, true);
}
template <class T> cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, std::size_t size, std::size_t offset = 0,
                                                    cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
    return ::opw::from_symbol(to, (const void*)&symbol, size, offset, kind);
}
template <class T> cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, std::size_t size, std::size_t offset,
                                                         cudaMemcpyKind kind, cudaStream_t stream = nullptr) {
    const cudaError_t error = ::opw::check_stream(stream);
    return error != cudaSuccess ? error : ::opw::from_symbol(to, (const void*)&symbol, size, offset, kind, stream, true);
}
template <class P, class T> cudaError_t cudaGetSymbolAddress(P** address, const T& symbol) {
    return ::opw::symbol_address(reinterpret_cast<void**>(address), (const void*)&symbol);
}
template <class T> cudaError_t cudaGetSymbolSize(std::size_t* size, const T& symbol) {
    return ::opw::symbol_size(size, (const void*)&symbol);
}
inline cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) { return cudaSuccess; }
inline cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
inline cudaError_t cudaProfilerStart() { return cudaSuccess; }
inline cudaError_t cudaProfilerStop() { return cudaSuccess; }
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; return cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
inline cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventRecord(cudaEvent_t event) { return cudaEventRecord(event, nullptr); }
inline cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
typedef void (*cudaHostFn_t)(void*);

// The line of a call, and the variable of an allocation, for messages.
#define cudaMalloc(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMalloc(__VA_ARGS__))
#define cudaMallocManaged(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMallocManaged(__VA_ARGS__))
#define cudaMallocAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMallocAsync(__VA_ARGS__))
#define cudaMallocPitch(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMallocPitch(__VA_ARGS__))
#define cudaMallocHost(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMallocHost(__VA_ARGS__))
#define cudaHostAlloc(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaHostAlloc(__VA_ARGS__))
#define cudaFree(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaFree(__VA_ARGS__))
#define cudaFreeAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaFreeAsync(__VA_ARGS__))
#define cudaFreeHost(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaFreeHost(__VA_ARGS__))
#define cudaMemcpy(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpy(__VA_ARGS__))
#define cudaMemcpyAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpyAsync(__VA_ARGS__))
#define cudaMemset(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemset(__VA_ARGS__))
#define cudaMemsetAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemsetAsync(__VA_ARGS__))
#define cudaMemcpy2D(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpy2D(__VA_ARGS__))
#define cudaLaunchKernel(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaLaunchKernel(__VA_ARGS__))
#define cudaLaunchCooperativeKernel(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaLaunchCooperativeKernel(__VA_ARGS__))
#define cudaMemcpyToSymbol(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpyToSymbol(__VA_ARGS__))
#define cudaMemcpy2DAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpy2DAsync(__VA_ARGS__))
#define cudaMemset2D(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemset2D(__VA_ARGS__))
#define cudaMemcpyToSymbolAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpyToSymbolAsync(__VA_ARGS__))
#define cudaMemcpyFromSymbolAsync(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpyFromSymbolAsync(__VA_ARGS__))
#define cudaStreamDestroy(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaStreamDestroy(__VA_ARGS__))
#define cudaStreamSynchronize(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaStreamSynchronize(__VA_ARGS__))
#define cudaStreamQuery(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaStreamQuery(__VA_ARGS__))
#define cudaStreamWaitEvent(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaStreamWaitEvent(__VA_ARGS__))
#define cudaEventRecord(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaEventRecord(__VA_ARGS__))
#define cudaMemcpyFromSymbol(...) (::opw::note_call(__FILE__, __LINE__, #__VA_ARGS__), cudaMemcpyFromSymbol(__VA_ARGS__))

// Kernels are known by name, because a template's address need not be taken to launch it: `text` is
// the call's arguments as written.
template <class K> cudaError_t opw_set_attribute(const char* text, K, cudaFuncAttribute attribute, int value) {
    return ::opw::set_attribute(text, attribute, value);
}
template <class K> cudaError_t opw_attributes_of(const char* text, cudaFuncAttributes* attributes, K) {
    return ::opw::attributes_of(attributes, text);
}
template <class K>
cudaError_t opw_occupancy(const char* text, int* blocks, K, int threads, std::size_t shared, unsigned = 0) {
    return ::opw::occupancy(blocks, text, threads, shared);
}
template <class K>
cudaError_t opw_best_block_size(const char* text, int* grid, int* block, K, std::size_t shared = 0, int limit = 0) {
    return ::opw::best_block_size(grid, block, text, shared, limit);
}
#define cudaFuncSetAttribute(...) opw_set_attribute(#__VA_ARGS__, __VA_ARGS__)
#define cudaFuncSetCacheConfig(...) (cudaSuccess)
#define cudaFuncGetAttributes(...) opw_attributes_of(#__VA_ARGS__, __VA_ARGS__)
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(...) opw_occupancy(#__VA_ARGS__, __VA_ARGS__)
#define cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(...) opw_occupancy(#__VA_ARGS__, __VA_ARGS__)
#define cudaOccupancyMaxPotentialBlockSize(...) opw_best_block_size(#__VA_ARGS__, __VA_ARGS__)
