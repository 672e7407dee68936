// Four elements a thread and request (two at a time for double): a quarter of the requests for the
// same sectors. Wide accesses need aligned addresses, so the elements before the first such address
// of x go one by one, and all of them do where out is not aligned at the same element.
#include "activate.cuh"

template <class Element> struct wide { using type = ushort4; };
template <> struct wide<float> { using type = float4; };
template <> struct wide<double> { using type = double2; };

extern "C" __global__ void threshold_activation(const T* x, T* out, int64_t n, double threshold, double alpha, double beta) {
    using Number = opw::acc_t<T>;
    using Wide = typename wide<T>::type;
    constexpr int64_t width = sizeof(Wide) / sizeof(T);
    const Activation<T> activate{static_cast<Number>(threshold), static_cast<Number>(alpha), static_cast<Number>(beta)};
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const auto beyond = [](const T* p) { return static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(p) % sizeof(Wide) / sizeof(T)); };
    int64_t head = (width - beyond(x)) % width;
    if (head > n || beyond(out + head) != 0) head = n;
    const int64_t wides = (n - head) / width, tail = head + wides * width;
    for (int64_t i = thread; i < head; i += step) out[i] = activate(x[i]);
    for (int64_t i = thread; i < wides; i += step) {
        Wide v = reinterpret_cast<const Wide*>(x + head)[i];
        T elements[width];
        memcpy(elements, &v, sizeof v);
        for (T& element : elements) element = activate(element);
        memcpy(&v, elements, sizeof v);
        reinterpret_cast<Wide*>(out + head)[i] = v;
    }
    for (int64_t i = tail + thread; i < n; i += step) out[i] = activate(x[i]);
}
