// Four elements at a time, and the rest one by one.
#include <cstdio>

__global__ void negate(float* data, int n) {
    int i = threadIdx.x * 4;
    if (i + 3 < n) {
        float4 v = *reinterpret_cast<float4*>(data + i);
        *reinterpret_cast<float4*>(data + i) = make_float4(-v.x, -v.y, -v.z, -v.w);
    } else {
        for (; i < n; ++i) data[i] = -data[i];
    }
}

int main() {
    const int n = 54;
    float host[n], *data;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    negate<<<1, 32>>>(data, n);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    bool right = true;
    for (int i = 0; i < n; ++i) right &= host[i] == -i;
    std::puts(right ? "ok" : "wrong");
    cudaFree(data);
}
