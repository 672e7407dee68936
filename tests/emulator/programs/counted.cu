// Branches whose divergence and arrays whose memory can be counted by hand; one warp of 32 lanes each.
#include <cstdlib>
#include <string>

__global__ void branches(int* out, int n) {
    int t = threadIdx.x, sum = 0;
    if (t < 16) sum += 1;  // @half
    if (t < 32) sum += 2;  // @all
    if (n == 7) sum += 4;  // @uniform
    for (int i = 0; i < n; ++i) sum += i;  // @same_for_all
    for (int i = 0; i < t; ++i) sum += out[i];  // @triangle
    for (int i = 0; i < 8; ++i) sum += out[i];  // @known
    if (t & 1) {  // @odd
        if (t & 2) sum += out[0];  // @odd_twice
    }
    int rest = t % 4;
    while (rest > 0) rest -= 1;  // @while
    do {
        rest += 1;
    } while (rest < t / 8);  // @do
    out[t + 32] = sum + rest;
}

__device__ int entry(const int* table, int i) {
    return table[i];  // @entry
}
template <int N> __device__ int total(const int (&values)[N]) {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += values[i];
    return sum;
}
__global__ void arrays(const int* in, int* out, int n) {
    const int t = threadIdx.x;
    int kept[4], also[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; ++i) kept[i] = in[t] + i;
    int rolled[8];
    for (int i = 0; i < n; ++i) rolled[i] = i;  // @rolled
    int turned[8];
    for (int i = 0; i < 8; i += 2) {
        turned[i] = t;  // @even
        turned[i + 1] = -t;
    }
    int partly[4];
    for (int i = 0; i < 4 && i < n; ++i) partly[i] = i;
    double wide[4] = {};
    wide[n & 3] = t;  // @wide
    int large[256];
    for (int i = 0; i < 256; ++i) large[i] = t;  // @large
    out[t] = total(kept) + total(also) + rolled[2] + entry(turned, t % 8) + partly[1] + int(wide[1]) + large[17];
}

int main(int, char** argv) {
    int* p;
    cudaMalloc(&p, 64 * sizeof(int));
    cudaMemset(p, 0, 64 * sizeof(int));
    if (argv[1] == std::string("branches")) branches<<<1, 32>>>(p, 7);
    else arrays<<<1, 32>>>(p, p + 32, 7);
    cudaFree(p);
}
