// The halo of a tile in shared memory is loaded by the first thread.
#include <cstdio>

const int BLOCK = 32;

__global__ void backward(const int* in, int* out) {
    __shared__ int tile[BLOCK + 1];
    int t = threadIdx.x, i = blockIdx.x * BLOCK + t;
    tile[t + 1] = in[i];
    if (t == 0) tile[0] = i > 0 ? in[i - 1] : 0;
    __syncthreads();
    out[i] = tile[t + 1] - tile[t];
}

int main() {
    int host[2 * BLOCK], *in, *out;
    for (int i = 0; i < 2 * BLOCK; ++i) host[i] = 3 * i + 3;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    backward<<<2, BLOCK>>>(in, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int value : host) right &= value == 3;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
