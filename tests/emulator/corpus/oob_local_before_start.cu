// A small stack in a local array is popped once more than it was pushed.
#include <cstdio>

__global__ void digits(const int* in, int* out) {
    int stack[12], top = 0, value = in[threadIdx.x], reversed = 0;
    for (int rest = value; rest > 0; rest /= 10) stack[top++] = rest % 10;
    for (int power = 1; top >= 0; power *= 10) {
        reversed += stack[--top] * power;  // EXPECT: out-of-bounds
    }
    out[threadIdx.x] = reversed;
}

int main() {
    int host[3] = {123, 45006, 7}, *in, *out;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemset(out, 0, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    digits<<<1, 3>>>(in, out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    std::puts(host[0] == 321 && host[1] == 60054 && host[2] == 7 ? "ok" : "wrong");
    cudaFree(in);
    cudaFree(out);
}
