// Only the threads with work to do wait at the barrier.
#include <cstdio>

__global__ void compact(const int* in, int* out) {
    __shared__ int count;
    int t = threadIdx.x;
    if (t == 0) count = 0;
    __syncthreads();
    bool mine = in[blockIdx.x * 64 + t] > 0;
    if (mine) {
        atomicAdd(&count, 1);
        __syncthreads();  // EXPECT: barrier-not-reached
    }
    if (mine && t == 63) out[blockIdx.x] = 0;
}

int main() {
    int host[128], *in, *out;
    for (int i = 0; i < 128; ++i) host[i] = i < 40;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, 2 * sizeof(int));
    cudaMemset(out, 0, 2 * sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    compact<<<2, 64>>>(in, out);
    cudaMemcpy(host, out, 2 * sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 40 && host[1] == 0 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
