// Two threads share a byte of flags in shared memory, each setting its own bit.
#include <cstdio>

__global__ void flags(const int* in, int* out) {
    __shared__ unsigned char bits[64];
    int t = threadIdx.x;
    bits[t] = 0;
    __syncthreads();
    if (in[t] > 5) bits[t / 2] |= 1 << t % 2;  // EXPECT: race-shared
    __syncthreads();
    out[t] = bits[t];
}

int main() {
    int host[64], *in, *out;
    for (int i = 0; i < 64; ++i) host[i] = i % 9;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    flags<<<1, 64>>>(in, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[5] == 0 && host[6] == 1 && host[8] == 1 && host[9] == 0 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
