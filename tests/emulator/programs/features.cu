// What the emulator runs: every case prints "ok" or what it got instead.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <curand_kernel.h>

namespace cg = cooperative_groups;

#define CHECK(call)                                                                    \
    do {                                                                               \
        cudaError_t error = (call);                                                    \
        if (error != cudaSuccess) {                                                    \
            std::printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(error));  \
            std::exit(1);                                                              \
        }                                                                              \
    } while (0)

static int failures = 0;
template <class T> void expect(const char* what, T got, T wanted) {
    if (got == wanted) return;
    ++failures;
    std::printf("%s: got %g, wanted %g\n", what, double(got), double(wanted));
}

template <class T> struct Managed {
    T* data;
    explicit Managed(size_t n) { CHECK(cudaMallocManaged(&data, n * sizeof(T))); std::memset((void*)data, 0, n * sizeof(T)); }
    ~Managed() { cudaFree(data); }
    operator T*() { return data; }
    T& operator[](size_t i) {
        CHECK(cudaDeviceSynchronize());
        return data[i];
    }
};

// ---- indices, dimensions, memory spaces

__global__ void indices(unsigned* out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[i] = i;
}

__constant__ float table[4] = {1, 2, 3, 4};
__constant__ int late[2];
__device__ int counter = 5, other_counter[3];
__managed__ int shared_with_host;
extern __shared__ int outside[];
__global__ void spaces(float* out) {
    out[threadIdx.x] = table[threadIdx.x] * late[0];
    atomicAdd(&counter, 1);
    if (threadIdx.x == 0) shared_with_host = other_counter[2];
}
__device__ int from_outside(int i) { return outside[i]; }
__global__ void dynamic(int* out) {
    outside[threadIdx.x] = threadIdx.x * 2;
    __syncthreads();
    out[threadIdx.x] = from_outside(blockDim.x - 1 - threadIdx.x);
}
template <class T, int N> __global__ void many_shared(T* out) {
    __shared__ T a[N], b[N][2];
    __shared__ struct { T x, y; } pair;
    a[threadIdx.x] = T(threadIdx.x);
    b[threadIdx.x][1] = T(threadIdx.x * 3);
    if (threadIdx.x == 0) pair.y = 7;
    __syncthreads();
    out[threadIdx.x] = a[N - 1 - threadIdx.x] + b[threadIdx.x][1] + pair.y;
}
__device__ int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }
__global__ void recursion(int* out) { out[threadIdx.x] = factorial(threadIdx.x); }
template <class F> __global__ void apply(int* out, F f) { out[threadIdx.x] = f(threadIdx.x); }

// ---- barriers, warps, atomics

__global__ void barriers(int* out) {
    int odd = threadIdx.x & 1;
    int count = __syncthreads_count(odd), both = __syncthreads_and(odd), either = __syncthreads_or(odd);
    if (threadIdx.x == 95) {
        out[0] = count;
        out[1] = both;
        out[2] = either;
    }
}
__global__ void warps(int* out) {
    int lane = threadIdx.x & 31;
    int sum = lane;
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    int up = __shfl_up_sync(0xffffffff, lane, 3), down = __shfl_down_sync(0xffffffff, lane, 3, 8);
    int from = __shfl_sync(0xffffffff, lane, 5, 16);
    unsigned ballot = __ballot_sync(0xffffffff, lane % 4 == 0);
    int any = __any_sync(0xffffffff, lane == 9), all = __all_sync(0xffffffff, lane < 31);
    unsigned match = __match_any_sync(0xffffffff, lane / 8);
    int same = 0;
    __match_all_sync(0xffffffff, 42.0, &same);
    double wide = __shfl_sync(0xffffffff, lane * 0.5, 31);
    if (lane < 16) {
        int half_sum = __reduce_add_sync(0xffff, lane);
        if (lane == 20 % 16) { out[9] = half_sum; out[10] = __activemask(); }
    }
    if (lane == 20) {
        int values[9] = {sum, up, down, from, (int)ballot, any * 2 + all, (int)match, same, (int)(wide * 2)};
        for (int i = 0; i < 9; ++i) out[i] = values[i];
    }
}
__global__ void atomics(int* i, unsigned* u, float* f, double* d, unsigned long long* l) {
    atomicAdd(i, 2);
    atomicSub(i + 1, 1);
    atomicMax(i + 2, (int)threadIdx.x);
    atomicMin(i + 3, -(int)threadIdx.x);
    atomicOr(i + 4, 1 << (threadIdx.x & 7));
    atomicXor(i + 5, 1);
    atomicInc(u, 9);
    atomicDec(u + 1, 9);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    atomicAdd_block(l, 1ull);
    unsigned long long old = l[1], assumed;
    do {
        assumed = old;
        old = atomicCAS(l + 1, assumed, assumed + 3);
    } while (old != assumed);
}

// ---- types and mathematics

__global__ void vectors(const float4* in, float4* out, double2* pairs, uchar4* bytes) {
    float4 v = in[threadIdx.x];
    v.x += 1;
    out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
    pairs[threadIdx.x] = make_double2(v.x, v.y);
    uchar4 b = {1, 2, 3, (unsigned char)threadIdx.x};
    bytes[threadIdx.x] = b;
}
__global__ void halves(float* out) {
    __half a = __float2half(1.5f), b = __hadd(a, __float2half(2.0f));
    __half2 two = __hmul2(__floats2half2_rn(3, 4), __float2half2_rn(2));
    out[0] = __half2float(b);
    out[1] = __high2float(two);
    out[2] = __half2float(__float2half(65520.0f));
    out[3] = __bfloat162float(__float2bfloat16(1.00390625f));
    out[4] = __bfloat162float(__float2bfloat16(1.01171875f));
    out[5] = __half2float(__hfma(__float2half(2048.0f), __float2half(1.0f), __float2half(1.0f)));
}
__global__ void bits(int* out) {
    out[0] = __popc(0xf0f0u);
    out[1] = __clz(1);
    out[2] = __ffs(8);
    out[3] = (int)__brev(1u);
    out[4] = (int)__byte_perm(0x33221100, 0x77665544, 0x7610);
    out[5] = __float_as_int(1.0f);
    out[6] = __float2int_rn(2.5f);
    out[7] = (int)__umulhi(0x80000000u, 6u);
    out[8] = __mul24(1000, 1000);
    out[9] = min(3, -4) + max(5u, 2u);
    out[10] = __float2int_rz(1e20f) == 2147483647;
    out[11] = __dp4a(0x01020304, 0x01010101, 5);
}

// ---- groups, grid-wide barriers, blocks that wait for one another

__global__ void groups(int* out) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
    int sum = cg::reduce(tile, (int)block.thread_rank(), cg::plus<int>());
    if (tile.thread_rank() == 0) out[tile.meta_group_rank()] = sum;
    if (threadIdx.x % 3 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        if (active.thread_rank() == 0) atomicAdd(out + 15, (int)active.size());
    }
    cg::sync(block);
}
__global__ void reverse_in_place(int* data, int n) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank();
    int mine = data[n - 1 - i];
    grid.sync();
    data[i] = mine;
}
__device__ int lock = 0;
__global__ void locked(int* total) {
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        __threadfence();
        *total = *total + 1;
        __threadfence();
        atomicExch(&lock, 0);
    }
}
__device__ unsigned arrived = 0;
__global__ void last_block(const int* in, int* partial, int* out) {
    __shared__ bool last;
    int sum = 0;
    for (int i = threadIdx.x; i < 32; i += blockDim.x) sum += in[blockIdx.x * 32 + i];
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int total = 0;
        for (unsigned b = 0; b < gridDim.x; ++b) total += partial[b];
        *out = total;
    }
}
__global__ void chained_scan(const int* in, int* out, volatile int* sums, volatile int* flags) {
    // Each block waits for the one before it.
    if (threadIdx.x == 0) {
        int before = 0;
        if (blockIdx.x > 0) {
            while (flags[blockIdx.x - 1] == 0) {}
            __threadfence();
            before = sums[blockIdx.x - 1];
        }
        sums[blockIdx.x] = before + in[blockIdx.x];
        __threadfence();
        flags[blockIdx.x] = 1;
        out[blockIdx.x] = before + in[blockIdx.x];
    }
}
__device__ unsigned waiting = 0;
__device__ volatile unsigned generation = 0;
__device__ void barrier_of_the_grid() {
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned mine = generation;
        __threadfence();
        if (atomicAdd(&waiting, 1) == gridDim.x - 1) {
            waiting = 0;
            __threadfence();
            generation = mine + 1;
        } else {
            while (generation == mine) {}
        }
        __threadfence();
    }
    __syncthreads();
}
__global__ void reverse_by_hand(int* data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    data[i] = i;
    barrier_of_the_grid();
    int other = data[n - 1 - i];
    barrier_of_the_grid();
    data[i] = other;
}
__global__ void look_back(const int* in, int* out, int* ready, int* values) {
    if (threadIdx.x == 0) {
        values[blockIdx.x] = in[blockIdx.x];
        __threadfence();
        atomicExch(&ready[blockIdx.x], 1);
        int sum = in[blockIdx.x];
        for (int b = blockIdx.x - 1; b >= 0; --b) {
            while (atomicAdd(&ready[b], 0) == 0) {}
            __threadfence();
            sum += values[b];
        }
        out[blockIdx.x] = sum;
    }
}
__global__ void warp_reduce_shared(int* out) {
    __shared__ int data[32];
    int lane = threadIdx.x;
    data[lane] = lane;
    __syncwarp();
    for (int step = 16; step; step /= 2) {
        int v = lane < step ? data[lane + step] : 0;
        __syncwarp();
        if (lane < step) data[lane] += v;
        __syncwarp();
    }
    if (lane == 0) *out = data[0];
}
struct Node {
    int value;
    Node* next;
};
__global__ void linked_list(int* out) {
    Node* head = nullptr;
    for (int i = 0; i < 4; ++i) head = new Node{i, head};
    int* squares = static_cast<int*>(malloc(4 * sizeof(int)));
    int sum = 0;
    for (int i = 0; i < 4; ++i) squares[i] = i * i;
    while (head) {
        Node* next = head->next;
        sum += head->value + squares[head->value];
        delete head;
        head = next;
    }
    free(squares);
    out[threadIdx.x] = sum;
}
__global__ void greet() { printf("block %d thread %d\n", blockIdx.x, threadIdx.x); }
__global__ void random_numbers(float* out) {
    curandState state;
    curand_init(7, blockIdx.x * blockDim.x + threadIdx.x, 0, &state);
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += curand_uniform(&state);
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum / 64;
}
__global__ void idle(int n) {
    if (blockIdx.x * blockDim.x + threadIdx.x >= n) return;
}

int main() {
    {
        Managed<unsigned> out(2 * 3 * 4 * 5 * 6 * 7);
        indices<<<dim3(2, 3, 4), dim3(5, 6, 7)>>>(out);
        CHECK(cudaDeviceSynchronize());
        for (unsigned i = 0; i < 5040; ++i) expect("index", out[i], i);
    }
    {
        Managed<float> out(4);
        int two[2] = {2, 0}, got = 0, nine[3] = {7, 8, 9};
        CHECK(cudaMemcpyToSymbol(late, two, sizeof two));
        CHECK(cudaMemcpyToSymbol(other_counter, nine, sizeof nine));
        spaces<<<1, 4>>>(out);
        CHECK(cudaMemcpyFromSymbol(&got, counter, sizeof got));
        expect("counter", got, 9);
        expect("managed", shared_with_host, 9);
        expect("constant", out[3], 8.0f);
        Managed<int> d(64);
        dynamic<<<1, 64, 64 * sizeof(int)>>>(d);
        many_shared<double, 32><<<1, 32>>>(nullptr == d ? nullptr : reinterpret_cast<double*>((int*)d));
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        expect("shared arrays", reinterpret_cast<double*>((int*)d)[1], 30.0 + 3 + 7);
        recursion<<<1, 8>>>(d);
        expect("recursion", d[7], 5040);
        int base = 10;
        apply<<<1, 8>>>(d.data, [=] __device__(int i) { return base + i; });
        expect("lambda", d[7], 17);
    }
    {
        Managed<int> out(16);
        barriers<<<1, 96>>>(out);
        expect("count", out[0], 48);
        expect("and", out[1], 0);
        expect("or", out[2], 1);
        warps<<<1, 32>>>(out);
        const int wanted[] = {496, 17, 23, 21, 0x11111111, 2, 0xff0000, 1, 31, 120, 0x10};
        for (int i = 0; i < 11; ++i) expect("warp", out[i], wanted[i]);
    }
    {
        Managed<int> i(8);
        Managed<unsigned> u(2);
        Managed<float> f(1);
        Managed<double> d(1);
        Managed<unsigned long long> l(2);
        atomics<<<1, 64>>>(i, u, f, d, l);
        const int wanted[] = {128, -64, 63, -63, 255, 0};
        for (int k = 0; k < 6; ++k) expect("atomic", i[k], wanted[k]);
        expect("inc", u[0], 4u);
        expect("dec", u[1], 6u);
        expect("float", f[0], 32.0f);
        expect("double", d[0], 16.0);
        expect("block", l[0], 64ull);
        expect("cas", l[1], 192ull);
    }
    {
        Managed<float4> in(8), out(8);
        Managed<double2> pairs(8);
        Managed<uchar4> bytes(8);
        in[3] = make_float4(1, 2, 3, 4);
        vectors<<<1, 8>>>(in, out, pairs, bytes);
        expect("float4", out[3].x * 1000 + out[3].w, 4002.0f);
        expect("double2", pairs[3].y, 2.0);
        expect("uchar4", (int)bytes[3].w, 3);
        Managed<float> h(6);
        halves<<<1, 1>>>(h);
        const float wanted[] = {3.5f, 8, INFINITY, 1, 1.015625f, 2048};
        for (int k = 0; k < 6; ++k) expect("half", h[k], wanted[k]);
        Managed<int> b(12);
        bits<<<1, 1>>>(b);
        const int answers[] = {8, 31, 4, (int)0x80000000, 0x77661100, 0x3f800000, 2, 3, 1000000, 1, 1, 15};
        for (int k = 0; k < 12; ++k) expect("bits", b[k], answers[k]);
    }
    {
        Managed<int> out(16);
        groups<<<1, 64>>>(out);
        expect("tile", out[7], 56 * 8 + 28);
        expect("coalesced", out[15], 22);
        Managed<int> data(1024);
        int n = 1024;
        for (int i = 0; i < n; ++i) data[i] = i;
        void* arguments[] = {&data.data, &n};
        CHECK(cudaLaunchCooperativeKernel((void*)reverse_in_place, dim3(8), dim3(128), arguments));
        expect("grid barrier", data[0], 1023);
        Managed<int> total(1);
        locked<<<20, 64>>>(total);
        expect("lock", total[0], 20);
        Managed<int> partial(32), sum(1);
        last_block<<<32, 32>>>(data, partial, sum);
        expect("last block", sum[0], 1023 * 512);
        Managed<int> sums(64), flags(64), scanned(64);
        chained_scan<<<64, 32>>>(data, scanned, sums, flags);
        expect("chain", scanned[63], 64 * 1023 - 63 * 32);
        reverse_by_hand<<<8, 64>>>(data, 512);
        expect("barrier by hand", data[1], 510);
        std::memset(flags.data, 0, 64 * sizeof(int));
        look_back<<<32, 32>>>(data, scanned, flags, sums);
        expect("look back", scanned[31], 32 * 511 - 31 * 16);
        linked_list<<<1, 32>>>(data);
        expect("new and malloc", data[31], 6 + 14);
        warp_reduce_shared<<<1, 32>>>(sum);
        expect("warp in shared memory", sum[0], 496);
    }
    {
        CHECK(cudaDeviceSynchronize());
        greet<<<2, 2>>>();
        Managed<float> r(64);
        random_numbers<<<2, 32>>>(r);
        float mean = 0;
        for (int i = 0; i < 64; ++i) mean += r[i] / 64;
        expect("random", mean > 0.45f && mean < 0.55f, true);
        idle<<<1024, 256>>>(1);
    }
    {
        cudaDeviceProp p;
        CHECK(cudaGetDeviceProperties(&p, 0));
        expect("warp size", p.warpSize, 32);
        int blocks = 0;
        CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, many_shared<double, 32>, 256, 65536));
        expect("occupancy", blocks, 3);
        cudaStream_t stream;
        cudaEvent_t start, stop;
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaEventCreate(&start));
        CHECK(cudaEventCreate(&stop));
        CHECK(cudaEventRecord(start, stream));
        idle<<<1, 32, 0, stream>>>(0);
        CHECK(cudaEventRecord(stop, stream));
        CHECK(cudaEventSynchronize(stop));
        float ms = -1;
        CHECK(cudaEventElapsedTime(&ms, start, stop));
        expect("elapsed", ms >= 0, true);
        CHECK(cudaEventDestroy(start));
        CHECK(cudaEventDestroy(stop));
        CHECK(cudaStreamDestroy(stream));
        float* pitched;
        size_t pitch;
        CHECK(cudaMallocPitch(&pitched, &pitch, 100, 4));
        expect("pitch", pitch % 256 == 0 && pitch >= 100, true);
        std::vector<float> host(100, 3);
        CHECK(cudaMemcpy2D(pitched, pitch, host.data(), 100, 100, 4, cudaMemcpyHostToDevice));
        CHECK(cudaFree(pitched));
        expect("error text", std::strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument"), 0);
    }
    std::printf(failures ? "%d failures\n" : "ok\n", failures);
    return failures != 0;
}
