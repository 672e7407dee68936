// Kernels with one fault each, and beside it the correct kernel that looks most like it.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <cuda_runtime.h>

template <class T> T* device(size_t count) {
    T* memory;
    cudaMalloc(&memory, count * sizeof(T));
    cudaMemset(memory, 0, count * sizeof(T));
    return memory;
}

__global__ void read_at(const int* in, int* out, int at) {
    out[threadIdx.x] = in[at];  // @read_at
}
__global__ void shared_at(int* out, int at) {
    __shared__ int first[32], second[32];
    first[threadIdx.x] = second[threadIdx.x] = 1;
    __syncthreads();
    int* p = first;
    out[threadIdx.x] = p[at];  // @shared_at
}
__global__ void local_at(int* out, int at) {
    int values[8];
    for (int i = 0; i < 8; ++i) values[i] = i * at;
    out[threadIdx.x] = values[at];  // @local_at
}
__global__ void shared_unwritten(int* out, int written) {
    __shared__ int data[32];
    if (threadIdx.x < written) data[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];  // @shared_unwritten
}
template <bool SYNC> __global__ void warp_sum(int* out) {
    __shared__ int data[32];
    int lane = threadIdx.x;
    data[lane] = 1;
    if (SYNC) __syncwarp();
    for (int step = 16; step; step /= 2) {
        int sum = 0;
        if (lane < step) sum = data[lane] + data[lane + step];  // @warp_read
        if (SYNC) __syncwarp();
        if (lane < step) data[lane] = sum;  // @warp_write
        if (SYNC) __syncwarp();
    }
    if (lane == 0) *out = data[0];
}
template <bool SYNC> __global__ void volatile_sum(int* out) {
    __shared__ volatile int data[64];
    int lane = threadIdx.x;
    data[lane] = 1;
    __syncthreads();
    if (lane < 32) {
        for (int step = 32; step; step /= 2) {
            int sum = data[lane] + data[lane + step];  // @volatile_read
            if (SYNC) __syncwarp();
            data[lane] = sum;  // @volatile_write
            if (SYNC) __syncwarp();
        }
    }
    if (lane == 0) *out = data[0];
}
__global__ void flag_between_warps(int* out) {
    __shared__ volatile int ready;
    __shared__ int value;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        value = 7;
        __threadfence_block();
        ready = 1;
    }
    if (threadIdx.x == 32) {
        while (!ready) {}
        __threadfence_block();
        *out = value;
    }
}
__global__ void same_value(int* flag, int value) {
    *flag = value * threadIdx.x + 5;  // @same_value
}
__global__ void halves_apart(unsigned short* data) { data[threadIdx.x] = threadIdx.x; }
__global__ void count_shared(int* out, bool wait) {
    __shared__ int n;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    atomicAdd(&n, 1);  // @count
    if (wait) __syncthreads();
    out[threadIdx.x] = n;  // @count_read
}
template <bool BLOCK_SCOPE> __global__ void scoped(int* counter) {
    if (BLOCK_SCOPE) atomicAdd_block(counter, 1);  // @block_scope
    else atomicAdd(counter, 1);
}
template <bool FENCE> __global__ void message(int* data, int* flag, int* out) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *data = 42;  // @message_write
        if (FENCE) __threadfence();
        atomicExch(flag, 1);
    }
    if (blockIdx.x == 1 && threadIdx.x == 0) {
        while (atomicAdd(flag, 0) == 0) {}
        if (FENCE) __threadfence();
        *out = *data;  // @message_read
    }
}
__global__ void diverged(int* out, bool both) {
    if (both || threadIdx.x < 16) {
        __syncthreads();  // @barrier_one
    } else {
        __syncthreads();  // @barrier_two
    }
    out[threadIdx.x] = 1;
}
__global__ void masked(int* out, unsigned mask) {
    int v = 0;
    if (threadIdx.x < 16) v = __shfl_sync(mask, threadIdx.x, 3);  // @masked
    out[threadIdx.x] = v;
}
__device__ volatile int never;
__global__ void spin(int n) {
    if (threadIdx.x == 0) while (never == n) {}  // @spin
}
__global__ void asserts(int n) {
    assert(threadIdx.x < n);  // @assert
}
__device__ int deep(int n, volatile int* p) { return n == 0 ? *p : deep(n - 1, p) + deep(n - 2 < 0 ? 0 : 0, p) + n; }
__global__ void recursion(int n, int* p) {
    *p = deep(n, p);
}
__constant__ int limits[4];
__device__ int table[4];
__global__ void past_variable(int* out, int at) {
    out[0] = table[at];  // @past_variable
}
__global__ void nothing() {}
__global__ void touch_host(int* p) {
    *p = 1;  // @touch_host
}
__global__ void structures(double2* p) { p[threadIdx.x] = make_double2(1, 2); }

int main(int argc, char** argv) {
    const std::string which = argv[1];
    const int good = argc > 2 && std::strcmp(argv[2], "good") == 0;
    int* a = device<int>(32);
    int* b = device<int>(64);
    if (which == "past_end") read_at<<<1, 1>>>(a, b, good ? 31 : 33);
    if (which == "before_start") read_at<<<1, 1>>>(a, b, good ? 0 : -2);
    if (which == "null") read_at<<<1, 1>>>(good ? a : nullptr, b, 0);
    if (which == "freed") {
        int* c = device<int>(16);
        int* kept = c;
        if (!good) cudaFree(c);  // @free
        read_at<<<1, 1>>>(kept, b, 3);
        if (good) cudaFree(c);
    }
    if (which == "double_free") {
        int* c = device<int>(16);
        cudaFree(c);
        if (!good) cudaFree(c);  // @double_free
    }
    if (which == "shared_end") shared_at<<<1, 32>>>(b, good ? 31 : 32);
    if (which == "local_end") local_at<<<1, 32>>>(b, good ? 7 : 8);
    if (which == "shared_unwritten") shared_unwritten<<<1, 32>>>(b, good ? 32 : 30);
    if (which == "warp_sum") {
        if (good) warp_sum<true><<<1, 32>>>(b);
        else warp_sum<false><<<1, 32>>>(b);
    }
    if (which == "volatile_sum") {
        if (good) volatile_sum<true><<<1, 64>>>(b);
        else volatile_sum<false><<<1, 64>>>(b);
    }
    if (which == "flag") flag_between_warps<<<1, 64>>>(b);
    if (which == "same_value") same_value<<<1, 32>>>(b, good ? 0 : 1);
    if (which == "halves") halves_apart<<<1, 32>>>(reinterpret_cast<unsigned short*>(b));
    if (which == "count") count_shared<<<1, 64>>>(b, good);
    if (which == "scope") {
        if (good) scoped<false><<<4, 32>>>(b);
        else scoped<true><<<4, 32>>>(b);
    }
    if (which == "message") {
        if (good) message<true><<<2, 32>>>(a, a + 1, b);
        else message<false><<<2, 32>>>(a, a + 1, b);
    }
    if (which == "diverged") diverged<<<1, 32>>>(b, good);
    if (which == "masked") masked<<<1, 32>>>(b, good ? 0xffffu : 0xffffffffu);
    if (which == "spin") spin<<<1, 32>>>(good ? 1 : 0);
    if (which == "assert") asserts<<<1, 32>>>(good ? 32 : 31);
    if (which == "recursion") recursion<<<1, 1>>>(good ? 10 : 100000000, b);
    if (which == "variable") past_variable<<<1, 1>>>(b, good ? 3 : 4);
    if (which == "unchecked") {
        nothing<<<1, 2048>>>();  // @unchecked
        if (good) std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
    }
    if (which == "host_pointer") {
        int on_host = 0;
        touch_host<<<1, 1>>>(good ? a : &on_host);
    }
    if (which == "device_pointer") {
        if (good) cudaMemset(a, 0, 4);
        else a[0] = 1;  // @device_pointer
    }
    if (which == "copy") {
        int host[64];
        cudaMemcpy(host, a, (good ? 32 : 40) * sizeof(int), cudaMemcpyDeviceToHost);  // @copy
    }
    if (which == "leak") {
        int* lost = nullptr;
        cudaMalloc(&lost, 64);  // @leak
        if (good) cudaFree(lost);
    }
    if (which == "crash") {
        volatile int* p = nullptr;
        if (!good) *p = 1;  // @crash
    }
    if (which == "exit") std::exit(good ? 0 : 7);
    if (which == "hang") {
        volatile int forever = !good;
        while (forever) {}  // @hang
    }
    if (which == "memory") {
        size_t total = 0;
        while (!good) {
            void* p = std::malloc(1 << 24);
            if (!p) {
                std::printf("refused\n");
                return 4;
            }
            std::memset(p, 1, 1 << 24);
            total += 1 << 24;
        }
    }
    if (which == "threads") nothing<<<1024, 256>>>();
    cudaFree(a);
    cudaFree(b);
    return 0;
}
