// One rung of matmul against three plain loops, as a program of its own that an emulator can run.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "opwright/types.h"

using std::int64_t;

#include KERNEL

namespace {

std::uint32_t state = 1;

// Every byte for bytes; for floats -3 to 3, whose products and sums are exact.
template <class Elem> Elem any() {
    state = state * 1664525u + 1013904223u;
    if constexpr (sizeof(Elem) == 1) return static_cast<Elem>(state >> 24);
    return static_cast<Elem>(static_cast<float>(static_cast<int>(state >> 24) % 7 - 3));
}

bool right(int64_t m, int64_t n, int64_t k, bool turn_a, bool turn_b) {
    std::vector<T> a(static_cast<std::size_t>(m * k));
    std::vector<U> b(static_cast<std::size_t>(k * n));
    std::vector<V> out(static_cast<std::size_t>(m * n));
    for (T& x : a) x = any<T>();
    for (U& x : b) x = any<U>();
    const int64_t am = turn_a ? 1 : k, ak = turn_a ? m : 1, bk = turn_b ? 1 : n, bn = turn_b ? k : 1;
    matmul(a.data(), b.data(), out.data(), m, n, k, am, ak, bk, bn);
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            opw::acc_t<T> sum = 0;
            for (int64_t p = 0; p < k; ++p) {
                sum += static_cast<opw::acc_t<T>>(a[static_cast<std::size_t>(i * am + p * ak)]) *
                       static_cast<opw::acc_t<T>>(b[static_cast<std::size_t>(p * bk + j * bn)]);
            }
            const V is = out[static_cast<std::size_t>(i * n + j)], wanted = static_cast<V>(sum);
            if (static_cast<opw::acc_t<T>>(is) != static_cast<opw::acc_t<T>>(wanted)) {
                std::printf("wrong at %ld, %ld of %ld x %ld x %ld\n", static_cast<long>(i),
                            static_cast<long>(j), static_cast<long>(m), static_cast<long>(n),
                            static_cast<long>(k));
                return false;
            }
        }
    }
    return true;
}

}  // namespace

int main() {
    const int64_t sizes[5][3] = {{1, 37, 19}, {17, 33, 67}, {13, 1, 70}, {5, 20, 1030}, {30, 2, 31}};
    int done = 0;
    for (const auto& size : sizes) {
        for (int layout = 0; layout < 4; ++layout, ++done) {
            if (!right(size[0], size[1], size[2], layout & 1, layout & 2)) return 1;
        }
    }
    std::printf("%d products are right\n", done);
}
