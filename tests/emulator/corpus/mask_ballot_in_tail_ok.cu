// A loop over 40 elements votes before lanes without an element drop out.
#include <cstdio>

__global__ void count_odd(const int* in, int* out, int n) {
    int t = threadIdx.x, total = 0;
    for (int first = 0; first < n; first += 32) {
        int i = first + t;
        unsigned odd = __ballot_sync(0xffffffff, i < n && in[i] % 2);
        total += __popc(odd);
    }
    out[t] = total;
}

int main() {
    const int n = 40;
    int host[n], *in, *out;
    for (int i = 0; i < n; ++i) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, 32 * sizeof(int));
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    count_odd<<<1, 32>>>(in, out, n);
    cudaMemcpy(host, out, 32 * sizeof(int), cudaMemcpyDeviceToHost);
    std::puts(host[0] == 20 && host[31] == 20 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
