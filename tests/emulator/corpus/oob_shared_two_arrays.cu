// Keys and values lie side by side in shared memory; an index made for both is used for one.
#include <cstdio>

__global__ void pairs(int* out) {
    __shared__ int keys[32], values[32];
    int t = threadIdx.x;
    int* both = keys;
    both[t] = t;  // EXPECT: out-of-bounds
    if (t >= 32) values[t - 32] = t;
    __syncthreads();
    if (t < 32) out[t] = keys[t] + values[t];
}

int main() {
    int host[32], *out;
    cudaMalloc(&out, sizeof host);
    cudaMemset(out, 0, sizeof host);
    pairs<<<1, 64>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < 32; ++i) right &= host[i] == 2 * i + 32;
    std::puts(right ? "ok" : "wrong");
    cudaFree(out);
}
