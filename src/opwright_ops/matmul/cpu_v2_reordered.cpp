// The same sums in i-k-j order: the innermost loop runs along a row of B and a row of sums.
// A line of B now serves 16 floats instead of 1, and the additions of one loop are independent, so the
// compiler makes them vectors. Each vector of sums is still loaded and stored for every multiply-add.
#include <algorithm>
#include <memory>

using Acc = opw::acc_t<T>;

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    const std::unique_ptr<Acc[]> sums(new Acc[n]);
    for (int64_t i = 0; i < m; ++i) {
        std::fill_n(sums.get(), n, Acc{0});
        for (int64_t p = 0; p < k; ++p) {
            const Acc factor = static_cast<Acc>(a[i * k + p]);
            const U* row = b + p * n;
            for (int64_t j = 0; j < n; ++j) sums[j] += factor * static_cast<Acc>(row[j]);
        }
        for (int64_t j = 0; j < n; ++j) out[i * n + j] = static_cast<V>(sums[j]);
    }
}
