// Three nested loops: the definition, one sum at a time.
// B is walked down a column, so each multiply-add takes a new 64-byte line for one element of it, and
// every addition waits for the one before it (3 or 4 cycles).
using Acc = opw::acc_t<T>;

extern "C" void matmul(const T* a, const U* b, V* out, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            Acc sum = 0;
            for (int64_t p = 0; p < k; ++p) {
                sum += static_cast<Acc>(a[i * k + p]) * static_cast<Acc>(b[p * n + j]);
            }
            out[i * n + j] = static_cast<V>(sum);
        }
    }
}
