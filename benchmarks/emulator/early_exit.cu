// 262,144 threads of which one in 256 has something to do.
#include <cstdio>

__global__ void sparse(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || i % 256) return;
    out[i / 256] = i;
}

int main() {
    const int threads = 262144, used = threads / 256;
    static int host[used];
    int* out;
    cudaMalloc(&out, sizeof host);
    sparse<<<threads / 128, 128>>>(out, threads);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::printf("%d\n", host[used - 1]);
    cudaFree(out);
}
