// The kernels of section C of the known answers, one chosen by the first argument.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>

template <class T> __global__ void shifted(T* a, int shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x + shift;
    a[i] = a[i] + 1;  // @shifted
}

template <class T> __global__ void strided(T* a, int stride) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * stride;
    a[i] = a[i] + 1;  // @strided
}

constexpr int N = 1024, TILE = 32, ROWS = 8;

__global__ void copy(float* out, const float* in) {
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) out[(y + j) * N + x] = in[(y + j) * N + x];
}

__global__ void transpose_naive(float* out, const float* in) {
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) out[x * N + (y + j)] = in[(y + j) * N + x];
}

template <int PAD> __global__ void transpose_shared(float* out, const float* in) {
    __shared__ float tile[TILE][TILE + PAD];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * N + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) out[(y + j) * N + x] = tile[threadIdx.x][threadIdx.y + j];
}

template <bool STRIDED> __global__ void reduce_step(float* out, int s) {
    __shared__ float data[256];
    data[threadIdx.x] = 1;
    __syncthreads();
    if (STRIDED) {
        int index = 2 * s * threadIdx.x;
        if (index < 256) {
            data[index] += data[index + s];  // @strided_step
        }
    } else if (threadIdx.x < s) {
        data[threadIdx.x] += data[threadIdx.x + s];  // @sequential_step
    }
    __syncthreads();
    if (threadIdx.x == 0) out[0] = data[0];
}

__global__ void store_32(float* matrix, bool to_row) {
    if (to_row) matrix[threadIdx.x * 4096] = 1;  // @lane_to_row
    else matrix[threadIdx.x] = 1;                // @lane_to_column
}

__global__ void early_return(const float* in, float* out, int n) {
    __shared__ float sum[64];
    int tid = threadIdx.x;
    if (tid >= n) return;
    sum[tid] = in[tid];
    __syncthreads();  // @early_barrier
    if (tid == 0) {
        float total = 0;
        for (int i = 0; i < n; ++i) total += sum[i];
        *out = total;
    }
}

template <bool BARRIER> __global__ void broadcast(int* out) {
    __shared__ int s;
    if (threadIdx.x == 0) {
        s = 7;  // @broadcast_write
    }
    if (BARRIER) __syncthreads();
    out[threadIdx.x] = s;  // @broadcast_read
}

__global__ void plain_counter(int* counter) {
    if (threadIdx.x == 0) {
        *counter = *counter + 1;  // @counter
    }
}

__global__ void nothing() {}

__global__ void matmul_unguarded(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ float As[16][16], Bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < k; k0 += 16) {
        As[threadIdx.y][threadIdx.x] = A[row * k + k0 + threadIdx.x];    // @load_a
        Bs[threadIdx.y][threadIdx.x] = B[(k0 + threadIdx.y) * n + col];  // @load_b
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) C[row * n + col] = sum;
}

__global__ void read_float4(const float* in, float* out) {
    const float4 v = *reinterpret_cast<const float4*>(in + 1);  // @float4
    out[0] = v.x + v.y + v.z + v.w;
}

__global__ void read_all(const int* in, int* out) {
    out[threadIdx.x] = in[threadIdx.x];  // @read_all
}

__global__ void matmul_one_barrier(const float* A, const float* B, float* C, int n) {
    __shared__ float As[16][16], Bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < n; k0 += 16) {
        As[threadIdx.y][threadIdx.x] = A[row * n + k0 + threadIdx.x];    // @write_as
        Bs[threadIdx.y][threadIdx.x] = B[(k0 + threadIdx.y) * n + col];  // @write_bs
        __syncthreads();
        for (int i = 0; i < 16; ++i) {
            sum += As[threadIdx.y][i] *  // @read_as
                   Bs[i][threadIdx.x];   // @read_bs
        }
    }
    C[row * n + col] = sum;
}

__global__ void foreign_lane() {
    if (threadIdx.x <= 16) __syncwarp(0xffff);  // @syncwarp
}

template <class T> T* device(size_t count, bool fill = true) {
    T* memory;
    if (cudaMalloc(&memory, count * sizeof(T)) != cudaSuccess) std::exit(9);
    if (fill) cudaMemset(memory, 0, count * sizeof(T));
    return memory;
}

int main(int argc, char** argv) {
    const char* which = argv[1];
    const int s = argc > 2 ? std::atoi(argv[2]) : 0;
    const auto is = [&](const char* name) { return std::strcmp(which, name) == 0; };
    if (is("shift_f32")) shifted<<<4, 64>>>(device<float>(1024), s);
    if (is("shift_f64")) shifted<<<4, 64>>>(device<double>(1024), s);
    if (is("stride_f32")) strided<<<4, 64>>>(device<float>(256 * 64), s);
    if (is("stride_f64")) strided<<<4, 64>>>(device<double>(256 * 64), s);
    if (is("transpose")) {
        float *in = device<float>(N * N), *out = device<float>(N * N, false);
        dim3 grid(N / TILE, N / TILE), block(TILE, ROWS);
        if (s == 0) copy<<<grid, block>>>(out, in);
        if (s == 1) transpose_naive<<<grid, block>>>(out, in);
        if (s == 2) transpose_shared<0><<<grid, block>>>(out, in);
        if (s == 3) transpose_shared<1><<<grid, block>>>(out, in);
    }
    if (is("reduce_strided")) reduce_step<true><<<1, 256>>>(device<float>(1), s);
    if (is("reduce_sequential")) reduce_step<false><<<1, 256>>>(device<float>(1), s);
    if (is("store")) store_32<<<1, 32>>>(device<float>(32 * 4096), s != 0);
    if (is("early_return")) {
        float ones[64], result = -1;
        for (float& x : ones) x = 1;
        float *in = device<float>(64), *out = device<float>(1);
        cudaMemcpy(in, ones, sizeof ones, cudaMemcpyHostToDevice);
        early_return<<<1, 64>>>(in, out, 40);
        cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
        std::printf("%g\n", result);
    }
    if (is("broadcast")) {
        int* out = device<int>(128);
        if (s) broadcast<true><<<1, 128>>>(out);
        else broadcast<false><<<1, 128>>>(out);
        int host[128], sevens = 0;
        cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
        for (int x : host) sevens += x == 7;
        std::printf("%d\n", sevens);
    }
    if (is("counter")) plain_counter<<<2, 32>>>(device<int>(1));
    if (is("threads")) {
        nothing<<<1, 1500>>>();  // @too_many_threads
        std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    }
    if (is("grid_y")) {
        nothing<<<dim3(1, 65536), 1>>>();  // @grid_y
        std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    }
    if (is("unguarded")) {
        const size_t n = 100 * 100;
        float* A = device<float>(n);  // not adjacent by chance: what follows must not hide an overrun
        float* B = device<float>(n);
        float* C = device<float>(n);
        matmul_unguarded<<<dim3(7, 7), dim3(16, 16)>>>(A, B, C, 100, 100, 100);
        std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    }
    if (is("float4")) read_float4<<<1, 1>>>(device<float>(8), device<float>(1));
    if (is("uninitialized")) {
        int *in = device<int>(64, false), *out = device<int>(64);
        cudaMemset(in, 0, 16 * sizeof(int));
        read_all<<<1, 64>>>(in, out);
    }
    if (is("one_barrier")) {
        matmul_one_barrier<<<dim3(3, 3), dim3(16, 16)>>>(device<float>(48 * 48), device<float>(48 * 48), device<float>(48 * 48), 48);
    }
    if (is("foreign_lane")) foreign_lane<<<1, 32>>>();
    return 0;
}
