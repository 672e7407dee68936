// Programs that end badly, or in ways that a tool may stumble over; the first argument says which.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

__global__ void count(int* p) {
    p[threadIdx.x] = static_cast<int>(threadIdx.x);
}
__global__ void talk(int lines) {
    for (int i = 0; i < lines; ++i) printf("%d: a line that is long enough to fill files with\n", i);
}
__device__ int deep(int n) {
    int kept[64];
    for (int i = 0; i < 64; ++i) kept[i] = n + i;
    return n == 0 ? 0 : deep(n - 1) + kept[n & 63] - n - (n & 63) + 1;
}
__global__ void recurse(int* p, int n) {
    p[threadIdx.x] = deep(n);
}
__global__ void divide(int* p, int by) {
    p[threadIdx.x] = 7 / by;  // @divide
}
__global__ void call(void (*function)(int*), int* p) {
    function(p);  // @call
}

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    int* p;
    cudaMalloc(&p, 4096);
    if (what == "fork") {
        if (fork() == 0) {
            std::printf("child %d\n", static_cast<int>(cudaMemset(p, 0, 4096)));  // @fork
            std::fflush(stdout);
            std::exit(3);
        }
        int status = 0;
        wait(&status);
        count<<<1, 32>>>(p);
        std::printf("parent %d\n", WEXITSTATUS(status));
    }
    if (what == "orphan" && fork() == 0) {
        for (;;) pause();
    }
    if (what == "stop") raise(SIGSTOP);
    if (what == "_exit") _exit(9);
    if (what == "throw") throw std::runtime_error("boom");
    if (what == "talk") talk<<<1, 32>>>(1000000);
    if (what == "deep") recurse<<<1, 32>>>(p, 300);
    if (what == "too_deep") recurse<<<1, 32>>>(p, 5000);
    if (what == "divide") divide<<<1, 32>>>(p, 0);
    if (what == "call") call<<<1, 32>>>(nullptr, p);
    if (what == "many") for (int i = 0; i < 200000; ++i) count<<<1, 1>>>(p);
    if (what == "deep") {
        int first = 0;
        cudaMemcpy(&first, p, sizeof first, cudaMemcpyDeviceToHost);
        std::printf("%d\n", first);
    }
    if (what == "scribble") {
        for (int file = 3; file < 16; ++file) {
            const char text[] = "{\"finding\":[],\"kind\":1}\n{\"counter\":1}\n{\"finding\":7}\n[]\n\xff{\n";
            if (write(file, text, sizeof text - 1) < 0) continue;
        }
    }
    cudaFree(p);
}
