// The host of matmul.cl: matmul_opencl KERNEL_FILE N ROUNDS prints what matmul.cu prints.
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static void check(cl_int error, const char* what) {
    if (error == CL_SUCCESS) return;
    std::fprintf(stderr, "%s: error %d\n", what, error);
    std::exit(3);
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    std::ifstream file(argv[1]);
    const std::string source((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const int n = std::atoi(argv[2]), rounds = std::atoi(argv[3]);
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    check(clGetPlatformIDs(1, &platform, nullptr), "no OpenCL platform");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "no OpenCL device");
    const cl_context context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    check(error, "context");
    const cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    check(error, "queue");
    const char* text = source.c_str();
    const cl_program program = clCreateProgramWithSource(context, 1, &text, nullptr, &error);
    check(error, "program");
    check(clBuildProgram(program, 1, &device, "", nullptr, nullptr), "build");
    const cl_kernel kernel = clCreateKernel(program, "matmul", &error);
    check(error, "kernel");
    std::vector<float> host(static_cast<std::size_t>(n) * n);
    for (int i = 0; i < n * n; ++i) host[i] = static_cast<float>(i % 7 - 3);
    const std::size_t bytes = host.size() * sizeof(float);
    cl_mem buffers[3];
    for (cl_uint i = 0; i < 3; ++i) {
        const cl_mem_flags flags = i < 2 ? CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR : CL_MEM_WRITE_ONLY;
        buffers[i] = clCreateBuffer(context, flags, bytes, i < 2 ? host.data() : nullptr, &error);
        check(error, "buffer");
        check(clSetKernelArg(kernel, i, sizeof buffers[i], &buffers[i]), "argument");
    }
    check(clSetKernelArg(kernel, 3, sizeof n, &n), "argument");
    const std::size_t local[2] = {16, 16}, side = static_cast<std::size_t>(n + 15) / 16 * 16, global[2] = {side, side};
    double best = 1e9, best_processor = 1e9;
    for (int round = 0; round < rounds; ++round) {
        const auto began = std::chrono::steady_clock::now();
        const std::clock_t processor = std::clock();
        check(clEnqueueNDRangeKernel(queue, kernel, 2, nullptr, global, local, 0, nullptr, nullptr), "launch");
        check(clFinish(queue), "finish");
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
        best_processor = std::min(best_processor, static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC);
    }
    check(clEnqueueReadBuffer(queue, buffers[2], CL_TRUE, 0, bytes, host.data(), 0, nullptr, nullptr), "read");
    double sum = 0;
    for (int i = 0; i < n * n; ++i) sum += static_cast<double>(host[i]) * (i % 11);
    std::printf("%.6f %.6f %.0f\n", best, best_processor, sum);
}
