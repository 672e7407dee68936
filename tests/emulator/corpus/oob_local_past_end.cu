// A window kept in a local array; the loop that shifts it starts one element too late.
#include <cstdio>

__global__ void moving_sum(const int* in, int* out, int n, int width) {
    int window[4] = {0, 0, 0, 0};
    int t = threadIdx.x;
    for (int i = t; i < n; ++i) {
        for (int k = width; k > 0; --k) {
            window[k] = window[k - 1];  // EXPECT: out-of-bounds
        }
        window[0] = in[i];
    }
    out[t] = window[0] + window[1] + window[2] + window[3];
}

int main() {
    const int n = 40;
    int host[n], *in, *out;
    for (int& value : host) value = 5;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, 8 * sizeof(int));
    cudaMemset(out, 0, 8 * sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    moving_sum<<<1, 8>>>(in, out, n, 4);
    cudaMemcpy(host, out, 8 * sizeof(int), cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < 8; ++i) right &= host[i] == 20;
    std::puts(right ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
