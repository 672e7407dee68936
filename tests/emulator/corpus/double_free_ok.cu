// Two users of one buffer, of which one owns it.
#include <cstdio>

struct Buffer {
    float* data;
    bool owner;
    ~Buffer() {
        if (owner) cudaFree(data);
    }
};

int main() {
    Buffer first{nullptr, true};
    cudaMalloc(&first.data, 64);
    cudaMemset(first.data, 0, 64);
    Buffer second{first.data, false};
    float value = 1;
    cudaMemcpy(&value, second.data, sizeof value, cudaMemcpyDeviceToHost);
    std::puts(value == 0 ? "ok" : "wrong");
}
