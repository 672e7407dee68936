// The lanes of the lower half call a vote whose mask names them.
#include <cstdio>

__global__ void vote(const int* in, int* out) {
    int t = threadIdx.x;
    int all = t < 16 ? __all_sync(0xffff, in[t] > 0) : 1;
    out[t] = all;
}

int main() {
    int host[32], *in, *out;
    for (int i = 0; i < 32; ++i) host[i] = i < 16;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    vote<<<1, 32>>>(in, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 1 && host[31] == 1 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
