// Rows of 34 floats in shared memory, read in pairs: every row begins at an even float.
#include <cstdio>

const int PITCH = 34;

__global__ void pairs(float* out) {
    __shared__ alignas(8) float rows[4 * PITCH];
    int t = threadIdx.x;
    for (int i = t; i < 4 * PITCH; i += 32) rows[i] = 1;
    __syncthreads();
    int row = t / 8, column = t % 8 * 2;
    float2 pair = *reinterpret_cast<float2*>(rows + row * PITCH + column);
    out[t] = pair.x + pair.y;
}

int main() {
    float host[32], *out;
    cudaMalloc(&out, sizeof host);
    cudaMemset(out, 0, sizeof host);
    pairs<<<1, 32>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 2 && host[31] == 2 ? "ok" : "wrong");
    cudaFree(out);
}
