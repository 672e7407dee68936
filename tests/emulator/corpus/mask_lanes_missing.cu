// Half a warp sums with the mask of a whole one.
#include <cstdio>

__global__ void half_sum(const int* in, int* out) {
    int t = threadIdx.x;
    if (t < 16) {
        int sum = in[t];
        for (int step = 8; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, step);  // EXPECT: lanes-missing
        }
        if (t == 0) *out = sum;
    } else {
        out[t] = 0;
    }
}

int main() {
    int host[32], *in, *out;
    for (int i = 0; i < 32; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    half_sum<<<1, 32>>>(in, out);
    cudaMemcpy(host, out, sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 120 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
