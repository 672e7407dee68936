// Lanes of a warp exchange values through shared memory as if they ran in lockstep.
#include <cstdio>

__global__ void rotate(int* data) {
    __shared__ int lanes[64];
    int t = threadIdx.x, warp = t & ~31, lane = t & 31;
    lanes[t] = data[t];  // EXPECT: race-shared
    data[t] = lanes[warp + (lane + 1) % 32];
}

int main() {
    int host[64], *data;
    for (int i = 0; i < 64; ++i) host[i] = i;
    cudaMalloc(&data, sizeof host);
    cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice);
    rotate<<<1, 64>>>(data);
    cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 1 && host[31] == 0 && host[63] == 32 ? "ok" : "wrong");
    cudaFree(data);
}
