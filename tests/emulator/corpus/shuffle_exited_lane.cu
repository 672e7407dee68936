// The value is taken from lane 31, which had no element and has ended.
#include <cstdio>

__global__ void last_value(const int* in, int* out, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    out[t] = __shfl_sync(0xffffffff, in[t], 31);  // EXPECT: inactive-source-lane
}

int main() {
    const int n = 20;
    int host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    last_value<<<1, 32>>>(in, out, n);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 19 && host[19] == 19 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
