// oneDNN's matmul primitive, to measure beside the kernels: made once for each set of sizes.
#if !__has_include(<dnnl.hpp>)
#error not found; apt install libdnnl-dev
#else

using A = T;
using B = U;
using Out = V;
#undef T  // which the library's templates call their own
#undef U
#undef V

#include <dnnl.hpp>
#include <type_traits>

namespace {

using dnnl::memory;

template <class Elem>
constexpr memory::data_type type_of() {
    if (std::is_same_v<Elem, float>) return memory::data_type::f32;
    if (std::is_same_v<Elem, std::int8_t>) return memory::data_type::s8;
    if (std::is_same_v<Elem, std::uint8_t>) return memory::data_type::u8;
    if (std::is_same_v<Elem, std::int32_t>) return memory::data_type::s32;
    return memory::data_type::bf16;
}

struct Product {
    Product(std::int64_t m, std::int64_t n, std::int64_t k)
        : sizes{m, n, k}, engine(dnnl::engine::kind::cpu, 0), stream(engine),
          a({m, k}, type_of<A>(), memory::format_tag::ab),
          b({k, n}, type_of<B>(), memory::format_tag::ab),
          out({m, n}, type_of<Out>(), memory::format_tag::ab),
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

extern "C" void matmul(const A* a, const B* b, Out* out, int64_t m, int64_t n, int64_t k) {
    if (m == 0 || n == 0) return;
    static Product* product = nullptr;
    if (!product || product->sizes[0] != m || product->sizes[1] != n || product->sizes[2] != k) {
        delete product;
        product = nullptr;
        product = new Product(m, n, k);
    }
    Product& p = *product;
    p.matmul.execute(p.stream, {{DNNL_ARG_SRC, memory(p.a, p.engine, const_cast<A*>(a))},
                                {DNNL_ARG_WEIGHTS, memory(p.b, p.engine, const_cast<B*>(b))},
                                {DNNL_ARG_DST, memory(p.out, p.engine, out)}});
    p.stream.wait();
}

#endif
