// Threads of one block count in global memory with +=.
#include <cstdio>

__global__ void count(const int* in, int* out) {
    if (in[threadIdx.x] % 3 == 0) *out += 1;  // EXPECT: race-global
}

int main() {
    int host[96], *in, *out, result = 0;
    for (int i = 0; i < 96; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, sizeof(int));
    count<<<1, 96>>>(in, out);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 32 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
