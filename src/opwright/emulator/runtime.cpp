// The emulator as one library: the core, then the checks that observe it. Built once per compiler.
#undef __CUDACC__

#include "opwright/cuda/cuda_bf16.h"
#include "opwright/cuda/cuda_fp16.h"

// The host's header makes calls tell where they stand; here the functions themselves are defined.
#undef cudaMalloc
#undef cudaMallocManaged
#undef cudaMallocAsync
#undef cudaMallocPitch
#undef cudaMallocHost
#undef cudaHostAlloc
#undef cudaFree
#undef cudaFreeAsync
#undef cudaFreeHost
#undef cudaMemcpy
#undef cudaMemcpyAsync
#undef cudaMemset
#undef cudaMemsetAsync
#undef cudaMemcpy2D
#undef cudaLaunchKernel
#undef cudaLaunchCooperativeKernel
#undef cudaMemcpyToSymbol
#undef cudaMemcpyFromSymbol
#undef cudaMemcpy2DAsync
#undef cudaMemset2D
#undef cudaMemcpyToSymbolAsync
#undef cudaMemcpyFromSymbolAsync
#undef cudaStreamDestroy
#undef cudaStreamSynchronize
#undef cudaStreamQuery
#undef cudaStreamWaitEvent
#undef cudaEventRecord
#undef cudaFuncSetAttribute
#undef cudaFuncGetAttributes

#include "core/grid.cpp"
#include "core/trace.cpp"
#include "core/device.cpp"
#include "core/host.cpp"
#include "core/report.cpp"
#include "core/process.cpp"
#include "core/serve.cpp"
#include "checks/all.cpp"
