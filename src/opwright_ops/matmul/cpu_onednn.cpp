// oneDNN's matmul primitive, to measure beside the kernels: made once for each set of sizes.
#if !__has_include(<dnnl.hpp>)
#error not found; apt install libdnnl-dev
#else

using Element = T;
#undef T  // which the library's templates call their own

#include <dnnl.hpp>
#include <type_traits>

namespace {

using dnnl::memory;

constexpr auto type =
    std::is_same_v<Element, float> ? memory::data_type::f32 : memory::data_type::bf16;

struct Product {
    Product(std::int64_t m, std::int64_t n, std::int64_t k)
        : sizes{m, n, k}, engine(dnnl::engine::kind::cpu, 0), stream(engine),
          a({m, k}, type, memory::format_tag::ab), b({k, n}, type, memory::format_tag::ab),
          out({m, n}, type, memory::format_tag::ab),
#if DNNL_VERSION_MAJOR >= 3
          matmul(dnnl::matmul::primitive_desc(engine, a, b, out)) {}
#else
          matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, out), engine)) {}
#endif

    std::int64_t sizes[3];
    dnnl::engine engine;
    dnnl::stream stream;
    memory::desc a, b, out;
    dnnl::matmul matmul;
};

}  // namespace

extern "C" void matmul(const Element* a, const Element* b, Element* out, int64_t m, int64_t n, int64_t k) {
    if (m == 0 || n == 0) return;
    static Product* product = nullptr;
    if (!product || product->sizes[0] != m || product->sizes[1] != n || product->sizes[2] != k) {
        delete product;
        product = nullptr;
        product = new Product(m, n, k);
    }
    const Product& p = *product;
    const auto at = [&](const memory::desc& desc, const Element* data) {
        return memory(desc, p.engine, const_cast<Element*>(data));
    };
    p.matmul.execute(p.stream, {{DNNL_ARG_SRC, at(p.a, a)},
                                {DNNL_ARG_WEIGHTS, at(p.b, b)},
                                {DNNL_ARG_DST, at(p.out, out)}});
    dnnl::stream(p.stream).wait();
}

#endif
