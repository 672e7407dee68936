// The largest value of each thread's part, where a part without values has none.
#include <cstdio>

__global__ void largest(const float* values, float* out, int n) {
    float best;
    bool found = false;
    for (int i = threadIdx.x * 4; i < threadIdx.x * 4 + 4; ++i) {
        if (i < n && (!found || values[i] > best)) {
            best = values[i];
            found = true;
        }
    }
    out[threadIdx.x] = best;  // EXPECT: uninitialized-read
}

int main() {
    float host[32], *values, *out;
    for (int i = 0; i < 32; ++i) host[i] = static_cast<float>(i % 5);
    cudaMalloc(&values, 32 * sizeof(float));
    cudaMalloc(&out, 8 * sizeof(float));
    cudaMemcpy(values, host, 32 * sizeof(float), cudaMemcpyHostToDevice);
    largest<<<1, 8>>>(values, out, 28);
    cudaMemcpy(host, out, 8 * sizeof(float), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 3 && host[1] == 4 ? "ok" : "wrong");
    cudaFree(values);
    cudaFree(out);
}
