// Each thread takes every (threads of the grid)-th element: any n with any grid, neighbouring lanes
// always on neighbouring elements.
#include "activate.cuh"

extern "C" __global__ void threshold_activation(const T* x, T* out, int64_t n, double threshold, double alpha, double beta) {
    using Number = opw::acc_t<T>;
    const Activation<T> activate{static_cast<Number>(threshold), static_cast<Number>(alpha), static_cast<Number>(beta)};
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) out[i] = activate(x[i]);
}
