// An optional output that the caller leaves out is written all the same.
#include <cstdio>

__global__ void divide(const int* in, int* quotient, int* remainder) {
    int t = threadIdx.x;
    quotient[t] = in[t] / 7;
    remainder[t] = in[t] % 7;  // EXPECT: null-pointer
}

int main() {
    int host[32], *in, *quotient;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&quotient, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    divide<<<1, 32>>>(in, quotient, nullptr);
    cudaMemcpy(host, quotient, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[31] == 4 && host[0] == 0 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(quotient);
}
