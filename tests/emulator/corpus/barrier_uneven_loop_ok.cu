// All threads of a block go round the loop equally often.
#include <cstdio>

__global__ void rounds(const int* in, int* out, int n) {
    __shared__ int sum;
    int t = threadIdx.x;
    if (t == 0) sum = 0;
    __syncthreads();
    for (int first = 0; first < n; first += blockDim.x) {
        if (first + t < n) atomicAdd(&sum, in[first + t]);
        __syncthreads();
    }
    if (t == 0) *out = 0;
    __syncthreads();
    if (t == 0) *out += sum;
}

int main() {
    const int n = 96;
    int host[n], *in, *out, result = 0;
    for (int& value : host) value = 1;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    rounds<<<1, 64>>>(in, out, n);
    cudaMemcpy(&result, out, sizeof result, cudaMemcpyDeviceToHost);
    std::puts(result == n ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
