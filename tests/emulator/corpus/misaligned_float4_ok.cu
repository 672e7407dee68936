// Four floats at a time from a buffer whose header fills a vector.
#include <cstdio>

const int HEADER = 4;

__global__ void sum(const float* data, float* out) {
    const float4* body = reinterpret_cast<const float4*>(data + HEADER);
    float4 v = body[threadIdx.x];
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

int main() {
    float host[HEADER + 128], *data, *out;
    for (float& value : host) value = 0.5f;
    cudaMalloc(&data, sizeof host);
    cudaMalloc(&out, 32 * sizeof(float));
    cudaMemset(out, 0, 32 * sizeof(float));
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    sum<<<1, 32>>>(data, out);
    cudaMemcpy(host, out, 32 * sizeof(float), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 2 && host[31] == 2 ? "ok" : "wrong");
    cudaFree(data);
    cudaFree(out);
}
