// One thread clears the block's counter while others may already count.
#include <cstdio>

__global__ void count_negative(const int* in, int* out) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;  // EXPECT: race-shared
    if (in[threadIdx.x] < 0) atomicAdd(&found, 1);
    __syncthreads();
    if (threadIdx.x == 0) *out = found;
}

int main() {
    int host[64], *in, *out, result = 0;
    for (int i = 0; i < 64; ++i) host[i] = i - 20;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    count_negative<<<1, 64>>>(in, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 20 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
