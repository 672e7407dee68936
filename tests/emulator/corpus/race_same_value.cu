// Whoever finds a zero stores 1 in one flag, with plain stores.
#include <cstdio>

__global__ void any_zero(const int* in, int* flag) {
    if (in[threadIdx.x] == 0) {
        *flag = 1;  // EXPECT: race-global
    }
}

int main() {
    int host[64], *in, *flag, result = 1;
    for (int i = 0; i < 64; ++i) host[i] = i % 5;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&flag, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemcpy(flag, &result, sizeof result, cudaMemcpyHostToDevice);
    any_zero<<<1, 64>>>(in, flag);
    cudaMemcpy(&result, flag, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == 1 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(flag);
}
