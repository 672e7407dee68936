// The leader of each warp takes a place in the output for all its lanes, if there is room.
#include <cstdio>

__device__ __noinline__ void reserve(int* taken, int room, int* first) {
    const int place = atomicAdd(taken, 32);
    if (place + 32 <= room) *first = place;
}

__global__ void append(int* taken, int* out, int room) {
    int first;
    if (threadIdx.x % 32 == 0) {
        reserve(taken, room, &first);
        first = first < room ? first : 0;  // EXPECT: uninitialized-read
    }
    first = __shfl_sync(0xffffffffu, first, 0);
    atomicAdd(&out[static_cast<unsigned>(first) % 32 / 32], 1);
}

int main() {
    int host[2], *taken, *out;
    cudaMalloc(&taken, sizeof(int));
    cudaMalloc(&out, 2 * sizeof(int));
    cudaMemset(taken, 0, sizeof(int));
    cudaMemset(out, 0, 2 * sizeof(int));
    append<<<1, 64>>>(taken, out, 32);
    cudaMemcpy(host, out, 2 * sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 64 ? "ok" : "wrong");
    cudaFree(taken);
    cudaFree(out);
}
