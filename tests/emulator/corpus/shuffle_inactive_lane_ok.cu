// The lower half of a warp asks for the value of one of its own lanes.
#include <cstdio>

__global__ void broadcast(const int* in, int* out) {
    int t = threadIdx.x;
    if (t < 16) {
        out[t] = __shfl_sync(0xffff, in[t], 12);
    }
}

int main() {
    int host[32], *in, *out;
    for (int i = 0; i < 32; ++i) host[i] = 100 + i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    broadcast<<<1, 32>>>(in, out);
    cudaMemcpy(host, out, 16 * sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 112 && host[15] == 112 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
