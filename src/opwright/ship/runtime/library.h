// One call of an operator: checks, the choice of a variant, packing, the kernel. What the operators are
// is in tables, which are generated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include "cpu.h"
#include "environment.h"
#include "memory.h"
#include "opwright/call.h"
#include "tensors.h"
#include "threads.h"

namespace opw::ship {

struct Variant {
    void (*entry)(const Call*);
    int path;
    bool threads;
    bool strided;               // is told the strides of its inputs, and takes them as they lie
    const char* text;           // "operator dtypes path kernel"
    const std::int64_t* sizes;  // the least of each dimension, then the largest; null for any
};

// A dimension of a tensor: index of a name, or ~size for a fixed one, or the "..." part.
constexpr std::int64_t ellipsis_mark = INT64_MIN;

struct TensorSpec {
    const char* name;
    const char* type;  // as declared, for messages
    int variable;      // index of the dtype variable, or -1
    int fixed;         // element type where there is no variable
    int rank;          // the "..." part counts as one
    const std::int64_t* dims;
    bool optional;     // a call may give NULL, and a variant gets null
};

struct ScalarSpec {
    const char* name;
    char kind;  // f, i or b
    bool has_default;
    double f;
    std::int64_t i;
    std::size_t offset, size;  // in the attributes
    std::int64_t words;        // how many values there are, from 0 up; 0: any
    const char* limit;         // what it may be, in words, or nullptr
    bool (*allows)(double);
};

// One assignment of element types: those of the variables, and its variants, best first.
struct Choice {
    const int* types;
    bool single;  // computes in float: attributes are rounded to it
    const Variant* variants;
    int variant_count;
};

struct Operator {
    const char* name;
    const TensorSpec* tensors;  // inputs, then the output
    int tensor_count;
    const char* const* dims;
    int dim_count;
    int ellipsis;     // index of the dimension that stands for "...", or -1
    bool broadcasts;  // leading dimensions broadcast, and a variant computes one item
    const ScalarSpec* scalars;
    int scalar_count;
    std::size_t attrs_size;
    const char* const* variables;
    int variable_count;
    const Choice* choices;
    int choice_count;
    const char* dtypes;  // all of them, for messages
};

constexpr int none = -1, automatic = -1, unknown = -2;

// How the paths of this library stand on this machine; found out once.
struct State {
    std::atomic<bool> ready{false};
    std::atomic<int> forced{automatic};
    std::uint64_t usable = 0;
    std::int64_t threads = 1;
    char refused[256] = "";  // what is wrong with the environment's FORCE
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
};
inline State state;

inline thread_local const Variant* last_variant = nullptr;

inline int find_path(const char* name) {
    for (int p = 0; p < path_count; ++p) {
        if (std::strcmp(name, paths[p].name) == 0) return p;
    }
    return none;
}

// The feature that is missing for a path, or null.
inline const char* missing(const Path& path) {
    for (int f = 0; f < path.feature_count; ++f) {
        if (!has_feature(path.features[f])) return path.features[f].name;
    }
    return path.tiles && !permit_tiles() ? "permission to use AMX tiles" : nullptr;
}

inline int refuse_path(char* text, std::size_t size, const char* name) {
    const int path = find_path(name);
    if (path == none) {
        std::snprintf(text, size, "no path is called '%.40s'; there are: %s", name, path_names);
    } else {
        std::snprintf(text, size, "the path '%s' cannot run here: this machine lacks %s", name,
                      missing(paths[path]));
    }
    return OPW_PATH;
}

inline void prepare() {
    pthread_mutex_lock(&state.lock);
    if (!state.ready.load(std::memory_order_relaxed)) {
        for (int p = 0; p < path_count; ++p) {
            if (!missing(paths[p])) state.usable |= std::uint64_t{1} << p;
        }
        state.threads = processors();
        if (const char* asked = std::getenv(threads_variable)) {
            const long long wanted = std::strtoll(asked, nullptr, 10);
            if (wanted > 0) state.threads = std::min<std::int64_t>(wanted, host::thread_limit());
        }
        const char* forced = std::getenv(force_variable);
        if (forced && *forced) {
            const int path = find_path(forced);
            if (path == none || !(state.usable >> path & 1u)) {
                char why[200];
                refuse_path(why, sizeof why, forced);
                std::snprintf(state.refused, sizeof state.refused, "%s: %s", force_variable, why);
                state.forced.store(unknown);
            } else {
                state.forced.store(path);
            }
        }
        state.ready.store(true, std::memory_order_release);
    }
    pthread_mutex_unlock(&state.lock);
}

inline void ensure_ready() {
    if (!state.ready.load(std::memory_order_acquire)) prepare();
}

inline bool takes(const Operator& op, const Variant& variant, const std::int64_t* sizes) {
    if (!variant.sizes) return true;
    for (int d = 0; d < op.dim_count; ++d) {
        if (sizes[d] < variant.sizes[d] || sizes[d] > variant.sizes[op.dim_count + d]) return false;
    }
    return true;
}

// The best usable variant for these sizes, of the forced path where one is; null and a message where
// there is none.
inline const Variant* choose(const Operator& op, const Choice& choice, const std::int64_t* sizes) {
    const int forced = state.forced.load(std::memory_order_relaxed);
    if (forced == unknown) {
        fail(OPW_PATH, "%s: %s", op.name, state.refused);
        return nullptr;
    }
    for (int v = 0; v < choice.variant_count; ++v) {
        const Variant& variant = choice.variants[v];
        if ((state.usable >> variant.path & 1u) && (forced == automatic || forced == variant.path) &&
            takes(op, variant, sizes)) {
            return &variant;
        }
    }
    if (forced == automatic) {
        fail(OPW_PATH, "%s: this machine can run none of its variants for these element types", op.name);
    } else {
        fail(OPW_PATH, "%s: the path '%s' was forced, and there is no such variant for these element types",
             op.name, paths[forced].name);
    }
    return nullptr;
}

// Scratch for the copies of one call.
class Packed {
  public:
    Packed() = default;
    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;
    ~Packed() { release(block_); }

    char* make(std::int64_t bytes) {
        block_ = allocate(static_cast<std::size_t>(bytes), 64);
        return static_cast<char*>(block_);
    }

  private:
    void* block_ = nullptr;
};

class Busy {
  public:
    Busy() : before_(thread_busy.load(std::memory_order_relaxed)) {
        thread_busy.store(true, std::memory_order_relaxed);
    }
    ~Busy() { thread_busy.store(before_, std::memory_order_relaxed); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    bool before_;
};

// Gives the caller back how its own arithmetic rounds, whatever the kernel did.
class KeptEnvironment {
  public:
    KeptEnvironment() = default;
    ~KeptEnvironment() { before_.restore(); }
    KeptEnvironment(const KeptEnvironment&) = delete;
    KeptEnvironment& operator=(const KeptEnvironment&) = delete;

  private:
    host::FloatEnvironment before_;
};

inline int settle_attributes(const Operator& op, const void* attrs, bool single, Value* values) {
    std::uint64_t given = 0;
    if (attrs) {
        std::size_t size;
        std::memcpy(&size, attrs, sizeof size);
        if (size < sizeof size) {
            return fail(OPW_ATTRIBUTE, "%s: struct_size of the attributes is %zu; set it to sizeof", op.name,
                        size);
        }
        // A caller that knows more attributes than this library: fine while it does not use them.
        for (std::size_t at = op.attrs_size; at < size; ++at) {
            if (at - op.attrs_size >= 4096 || static_cast<const char*>(attrs)[at] != 0) {
                return fail(OPW_ATTRIBUTE,
                            "%s: the attributes have struct_size %zu, more than the %zu bytes of this version",
                            op.name, size, op.attrs_size);
            }
        }
        given = size;
    }
    for (int s = 0; s < op.scalar_count; ++s) {
        const ScalarSpec& scalar = op.scalars[s];
        double f = scalar.f;
        std::int64_t i = scalar.i;
        if (scalar.offset + scalar.size <= given) {
            const char* at = static_cast<const char*>(attrs) + scalar.offset;
            if (scalar.kind == 'f') std::memcpy(&f, at, sizeof f);
            if (scalar.kind == 'i') std::memcpy(&i, at, sizeof i);
            if (scalar.kind == 'b') {
                std::int32_t word;
                std::memcpy(&word, at, sizeof word);
                i = word != 0;
            }
        } else if (!scalar.has_default) {
            return fail(OPW_ATTRIBUTE, "%s: attribute %s has no default: pass the attributes", op.name,
                        scalar.name);
        }
        if (scalar.kind == 'f') {
            // As NumPy and torch round a scalar to the array's type.
            values[s].f = single ? static_cast<double>(static_cast<float>(f)) : f;
            if (scalar.limit && !scalar.allows(values[s].f)) {
                return fail(OPW_ATTRIBUTE, "%s: attribute %s is %g; it should be %s", op.name, scalar.name, f,
                            scalar.limit);
            }
        } else {
            if (scalar.words && (i < 0 || i >= scalar.words)) {
                return fail(OPW_ATTRIBUTE, "%s: attribute %s is %lld; it can be 0 to %lld", op.name, scalar.name,
                            static_cast<long long>(i), static_cast<long long>(scalar.words - 1));
            }
            if (scalar.limit && !scalar.allows(static_cast<double>(i))) {
                return fail(OPW_ATTRIBUTE, "%s: attribute %s is %lld; it should be %s", op.name, scalar.name,
                            static_cast<long long>(i), scalar.limit);
            }
            values[s].i = i;
        }
    }
    return OPW_OK;
}

inline int find_element(const DLDataType& type) {
    for (int e = 0; e < element_count; ++e) {
        if (type.code == elements[e].code && type.bits == elements[e].bits && type.lanes == 1) return e;
    }
    return none;
}

// Fields that are wrong in any operator, and the element types; `types` gets the variables'.
inline int check_arguments(const Operator& op, const DLTensor* const* tensors, View* views, int* types,
                           bool* may_be) {
    for (int v = 0; v < op.variable_count; ++v) types[v] = none;
    for (int t = 0; t < op.tensor_count; ++t) {
        const TensorSpec& spec = op.tensors[t];
        const DLTensor* given = tensors[t];
        if (!given && spec.optional) {
            views[t].count = 0;
            continue;
        }
        if (!given) return fail(OPW_NULL, "%s: %s is NULL", op.name, spec.name);
        if (given->device.device_type != kDLCPU) {
            return fail(OPW_DEVICE, "%s: %s is on device type %d; this library takes the CPU's memory (1)",
                        op.name, spec.name, static_cast<int>(given->device.device_type));
        }
        if (given->ndim < 0 || given->ndim > max_rank) {
            return fail(OPW_RANK, "%s: %s has %d dimensions; 0 to %d can be", op.name, spec.name,
                        given->ndim, max_rank);
        }
        if (given->ndim > 0 && !given->shape) {
            return fail(OPW_NULL, "%s: %s has dimensions, but its shape is NULL", op.name, spec.name);
        }
        const int element = find_element(given->dtype);
        const int expected = spec.variable >= 0 ? types[spec.variable] : spec.fixed;
        if (element == none) {
            return fail(OPW_DTYPE, "%s: %s has code %d, %d bits, %d lanes, which no variant takes; there are: %s",
                        op.name, spec.name, given->dtype.code, given->dtype.bits, given->dtype.lanes,
                        op.dtypes);
        }
        if (expected != none && element != expected) {
            return fail(OPW_DTYPE, "%s: %s is %s and should be %s (%s)", op.name, spec.name,
                        elements[element].name, elements[expected].name, spec.type);
        }
        if (spec.variable >= 0) types[spec.variable] = element;
        if (const int status = check_tensor(given, elements[element], op.name, spec.name, views[t])) {
            return status;
        }
    }
    for (int c = 0; c < op.choice_count; ++c) {
        may_be[c] = true;
        for (int v = 0; v < op.variable_count; ++v) {
            // That of a tensor which is left out follows from the others.
            may_be[c] &= types[v] == none || op.choices[c].types[v] == types[v];
        }
    }
    return OPW_OK;
}

// The leading dimensions of the inputs so far, by NumPy's broadcasting, the innermost first.
struct Joined {
    int rank = 0;
    std::int64_t size[max_rank];
    const char* owner[max_rank];
};

inline int join_leading(const Operator& op, int t, const DLTensor& given, int leading, Joined& joined) {
    const bool output = t == op.tensor_count - 1;
    if (output && leading != joined.rank) {
        return fail(OPW_RANK, "%s: %s has %d leading dimensions; those of the inputs broadcast to %d", op.name,
                    op.tensors[t].name, leading, joined.rank);
    }
    for (int d = 0; d < leading; ++d) {
        const std::int64_t size = given.shape[leading - 1 - d];
        if (d == joined.rank) {
            joined.size[joined.rank] = 1;
            joined.owner[joined.rank++] = op.tensors[t].name;
        }
        if (size == joined.size[d]) continue;
        if (joined.size[d] != 1 || output) {
            if (size == 1 && !output) continue;
            return fail(OPW_SHAPE, "%s: the leading dimensions of %s and %s do not broadcast: %lld and %lld", op.name,
                        joined.owner[d], op.tensors[t].name, static_cast<long long>(joined.size[d]),
                        static_cast<long long>(size));
        }
        joined.size[d] = size;
        joined.owner[d] = op.tensors[t].name;
    }
    return OPW_OK;
}

// What leads from item to item: see opwright/items.h. `copied` tensors are row-major.
inline void tell_walk(const Operator& op, const DLTensor* const* tensors, const bool* copied, Value* walk) {
    const int out = op.tensor_count - 1, rank = tensors[out]->ndim - op.tensors[out].rank + 1;
    int found = 0;
    for (int d = 0; d < rank; ++d) {
        const std::int64_t extent = tensors[out]->shape[d];
        if (extent == 1) continue;
        Value* step = walk + 1 + found++ * (op.tensor_count + 1);
        (step++)->i = extent;
        for (int t = 0; t < op.tensor_count; ++t, ++step) {
            step->i = 0;
            if (!tensors[t]) continue;
            const DLTensor& given = *tensors[t];
            const TensorSpec& spec = op.tensors[t];
            const bool open = spec.rank > 0 && spec.dims[0] == ellipsis_mark;
            const int at = open ? d - rank + given.ndim - spec.rank + 1 : -1;
            if (at < 0 || given.shape[at] == 1) continue;
            std::int64_t row = 1;
            for (int inner = at + 1; inner < given.ndim; ++inner) row *= given.shape[inner];
            step->i = given.strides && !copied[t] ? given.strides[at] : row;
        }
    }
    walk[0].i = found;
}

inline int settle_dims(const Operator& op, const DLTensor* const* tensors, std::int64_t* sizes) {
    Joined joined;
    const DLTensor* leading_of = nullptr;
    const char* leading_name = "";
    int leading = 0;
    const char* owner[max_dims + 1] = {};
    for (int t = 0; t < op.tensor_count; ++t) {
        const TensorSpec& spec = op.tensors[t];
        const DLTensor* given = tensors[t];
        if (!given) continue;
        const bool open = spec.rank > 0 && spec.dims[0] == ellipsis_mark;
        const int fixed = spec.rank - (open ? 1 : 0), extra = given->ndim - fixed;
        if (extra < 0 || (extra > 0 && !open)) {
            return fail(OPW_RANK, "%s: %s has %d dimensions; %s needs %s%d", op.name, spec.name, given->ndim,
                        spec.type, open ? "at least " : "", fixed);
        }
        if (open && op.broadcasts) {
            if (const int status = join_leading(op, t, *given, extra, joined)) return status;
        } else if (open && leading_of) {
            bool same = extra == leading;
            for (int d = 0; same && d < extra; ++d) same = given->shape[d] == leading_of->shape[d];
            if (!same) {
                return fail(OPW_SHAPE, "%s: the leading dimensions '...' of %s and %s differ", op.name,
                            leading_name, spec.name);
            }
        } else if (open) {
            leading_of = given;
            leading_name = spec.name;
            leading = extra;
            std::int64_t product = 1;
            bool too_large = false;
            for (int d = 0; d < extra; ++d) {
                if (given->shape[d] == 0) {
                    product = 0;
                    too_large = false;
                    break;
                }
                too_large |= __builtin_mul_overflow(product, given->shape[d], &product);
            }
            if (too_large) {
                return fail(OPW_OVERFLOW, "%s: the leading dimensions of %s pass int64", op.name, spec.name);
            }
            sizes[op.ellipsis] = product;
        }
        for (int d = 0; d < fixed; ++d) {
            const std::int64_t dim = spec.dims[spec.rank - fixed + d], size = given->shape[extra + d];
            if (dim < 0) {
                if (size != ~dim) {
                    return fail(OPW_SHAPE, "%s: dimension %d of %s is %lld; %s needs %lld", op.name,
                                extra + d, spec.name, static_cast<long long>(size), spec.type,
                                static_cast<long long>(~dim));
                }
            } else if (!owner[dim]) {
                owner[dim] = spec.name;
                sizes[dim] = size;
            } else if (sizes[dim] != size) {
                return fail(OPW_SHAPE, "%s: %s is %lld in %s and %lld in %s; they must be the same", op.name,
                            op.dims[dim], static_cast<long long>(sizes[dim]), owner[dim],
                            static_cast<long long>(size), spec.name);
            }
        }
    }
    return OPW_OK;
}

// The caller's threads, or our own.
inline int enter(const Operator& op, const Variant& variant, const CallContext* context, void* const* data,
                 const Value* values) {
    std::int64_t granted = variant.threads ? state.threads : 1;
    ParallelFor callers = nullptr;
    void* callers_pool = nullptr;
    if (context) {
        if (variant.threads && context->threads > 0) granted = context->threads;
        callers = context->parallel_for;
        callers_pool = context->pool;
    }
    granted = std::min(granted, host::thread_limit());
    const KeptEnvironment environment;
    try {
        const Busy busy;
        if (callers) {
            const CallersThreads threads(callers, callers_pool, granted);
            const Call call{data, values, &threads};
            variant.entry(&call);
        } else {
            const OwnThreads threads(granted);
            const Call call{data, values, &threads};
            variant.entry(&call);
        }
    } catch (const std::bad_alloc&) {
        return fail(OPW_MEMORY, "%s: no memory for the kernel's workspace; out is incomplete", op.name);
    } catch (const std::exception& error) {
        return fail(OPW_KERNEL, "%s: %s threw: %.300s; out is incomplete", op.name, variant.text, error.what());
    } catch (...) {
        return fail(OPW_KERNEL, "%s: %s threw; out is incomplete", op.name, variant.text);
    }
    last_variant = &variant;
    return OPW_OK;
}

inline int check_context(const Operator& op, const CallContext* context) {
    if (!context) return OPW_OK;
    if (context->struct_size < sizeof(CallContext)) {
        return fail(OPW_CONTEXT_STATUS, "%s: struct_size of the context is %zu; set it to sizeof", op.name,
                    context->struct_size);
    }
    if (context->threads < 0) {
        return fail(OPW_CONTEXT_STATUS, "%s: %d threads in the context; 0 (the default) or more can be",
                    op.name, context->threads);
    }
    return OPW_OK;
}

// How many dimensions of a tensor, its leading ones where they broadcast, no variant sees.
inline int unseen(const Operator& op, const TensorSpec& spec) {
    return op.broadcasts && spec.rank > 0 && spec.dims[0] == ellipsis_mark ? 1 : 0;
}

// The strides of a tensor's own dimensions in row-major order, in elements; "..." is one of them.
inline void tell_row_major(const Operator& op, const TensorSpec& spec, const DLTensor& given, Value* strides) {
    std::int64_t row = 1;
    for (int d = spec.rank - 1, at = given.ndim - 1; d >= unseen(op, spec); --d, --at) {
        strides[d - unseen(op, spec)].i = row;
        if (spec.dims[d] != ellipsis_mark) row *= given.shape[at];
    }
}

// The same as they are. False for what a kernel cannot be told: negative strides, and leading
// dimensions that do not collapse into one. Of a dimension of one element, that of row-major order.
inline bool tell_strides(const Operator& op, const TensorSpec& spec, const DLTensor& given, Value* strides) {
    tell_row_major(op, spec, given, strides);
    if (!given.strides) return true;
    for (int d = 0; d < given.ndim; ++d) {
        if (given.shape[d] == 0) return true;
    }
    const bool open = spec.rank > 0 && spec.dims[0] == ellipsis_mark;
    const int leading = given.ndim - spec.rank + (open ? 1 : 0);
    std::int64_t inner = 0;  // the stride that the next of the leading dimensions has to have
    bool any = false;
    for (int at = given.ndim - 1; at >= 0; --at) {
        if (given.shape[at] == 1) continue;
        const std::int64_t stride = given.strides[at];
        if (stride < 0) return false;
        if (at >= leading) {
            strides[at - leading + (open ? 1 : 0) - unseen(op, spec)].i = stride;
            continue;
        }
        if (op.broadcasts) continue;  // told by tell_walk
        if (any && stride != inner) return false;
        if (!any) strides[0].i = stride;
        any = true;
        inner = stride * given.shape[at];
    }
    return true;
}

inline int run(const Operator& op, const DLTensor* const* tensors, const void* attrs,
               const CallContext* context) {
    ensure_ready();
    View views[max_tensors];
    int types[max_variables + 1];
    bool may_be[max_choices];
    std::int64_t sizes[max_dims + 1];
    constexpr int max_walk = 1 + max_rank * (max_tensors + 1);
    Value values[max_dims + max_strides + max_scalars + max_walk], scalars[max_scalars + 1];
    if (const int status = check_context(op, context)) return status;
    if (const int status = check_arguments(op, tensors, views, types, may_be)) return status;
    const Choice* choice = nullptr;
    for (int c = 0; c < op.choice_count && !choice; ++c) {
        if (may_be[c]) choice = &op.choices[c];
    }
    if (!choice) {
        char given[512] = "";
        for (int t = 0; t < op.tensor_count; ++t) {
            if (!tensors[t]) continue;
            const std::size_t used = std::strlen(given);
            std::snprintf(given + used, sizeof given - used, "%s%s is %s", t > 0 ? ", " : "",
                          op.tensors[t].name, elements[find_element(tensors[t]->dtype)].name);
        }
        return fail(OPW_DTYPE, "%s: no variant is for these element types: %s; there are: %s", op.name, given,
                    op.dtypes);
    }
    if (const int status = settle_dims(op, tensors, sizes)) return status;
    if (const int status = settle_attributes(op, attrs, choice->single, scalars)) return status;
    for (int d = 0; d < op.dim_count; ++d) values[d].i = sizes[d];
    const int inputs = op.tensor_count - 1;
    const View& out = views[inputs];
    if (out.count > 0 && overlaps_itself(out)) {
        return fail(OPW_STRIDES, "%s: several elements of %s share one place in memory", op.name,
                    op.tensors[inputs].name);
    }
    for (int t = 0; t < inputs; ++t) {
        if (overlap(out, views[t])) {
            return fail(OPW_OVERLAP, "%s: %s overlaps %s in memory", op.name, op.tensors[inputs].name,
                        op.tensors[t].name);
        }
    }
    const Variant* variant = choose(op, *choice, sizes);
    if (!variant) return OPW_PATH;
    if (out.count == 0) {
        last_variant = variant;
        return OPW_OK;
    }
    Packed packed[max_tensors];
    bool copied[max_tensors] = {};
    void* data[max_tensors];
    // Where a tensor has no elements, an address that exists all the same.
    alignas(64) static char nowhere[64];
    int count = op.dim_count;  // of values
    for (int t = 0; t < op.tensor_count; ++t) {
        if (!tensors[t]) {
            data[t] = nullptr;
            const int strides = variant->strided ? op.tensors[t].rank - unseen(op, op.tensors[t]) : 0;
            for (int d = 0; d < strides; ++d) values[count++].i = 0;
            continue;
        }
        data[t] = views[t].count > 0 ? views[t].data : nowhere;
        if (t < inputs && variant->strided) {
            const bool as_it_lies = tell_strides(op, op.tensors[t], *tensors[t], values + count);
            if (!as_it_lies) tell_row_major(op, op.tensors[t], *tensors[t], values + count);
            count += op.tensors[t].rank - unseen(op, op.tensors[t]);
            if (as_it_lies) continue;
        }
        if (views[t].count == 0 || views[t].dense) continue;
        char* copy = packed[t].make(views[t].count * views[t].size);
        if (!copy) {
            return fail(OPW_MEMORY, "%s: no memory to pack %s (%lld bytes)", op.name, op.tensors[t].name,
                        static_cast<long long>(views[t].count * views[t].size));
        }
        if (t < inputs) copy_strided(views[t], copy, true);
        data[t] = copy;
        copied[t] = true;
    }
    std::copy_n(scalars, op.scalar_count, values + count);
    if (op.broadcasts) tell_walk(op, tensors, copied, values + count + op.scalar_count);
    if (const int status = enter(op, *variant, context, data, values)) return status;
    if (data[inputs] != out.data) copy_strided(out, static_cast<char*>(data[inputs]), false);
    return OPW_OK;
}

// --- TVM-FFI, without its headers: a calling convention of three structs and a few numbers ---

struct FfiAny {
    std::int32_t type;
    std::uint32_t padding;
    union {
        std::int64_t i;
        double f;
        void* p;
    };
};

constexpr std::int32_t ffi_none = 0, ffi_int = 1, ffi_bool = 2, ffi_float = 3, ffi_dltensor = 7,
                       ffi_tensor = 70;
constexpr std::size_t ffi_object_header = 24;  // reference counts, type, deleter; then the DLTensor

using FfiRaise = void (*)(const char* kind, const char* text);
inline std::atomic<FfiRaise> ffi_raise{nullptr};

inline int ffi_fail(int status) {
    FfiRaise raise = ffi_raise.load();
    if (!raise) {
        raise = reinterpret_cast<FfiRaise>(dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr"));
        ffi_raise.store(raise);
    }
    const char* kind = "RuntimeError";
    if (status == OPW_DTYPE || status == OPW_DEVICE || status == OPW_NULL) kind = "TypeError";
    if (status == OPW_RANK || status == OPW_SHAPE || status == OPW_STRIDES || status == OPW_OVERLAP ||
        status == OPW_ALIGNMENT || status == OPW_OVERFLOW || status == OPW_ATTRIBUTE) {
        kind = "ValueError";
    }
    if (status == OPW_MEMORY) kind = "MemoryError";
    if (raise) raise(kind, message);
    return -1;
}

// Tensors in declaration order with the output last, optional ones maybe None, then the attributes; those
// left out, or None, are at their default.
inline int ffi_call(const Operator& op, const FfiAny* arguments, std::int32_t count, FfiAny* result) {
    if (count < op.tensor_count || count > op.tensor_count + op.scalar_count) {
        return ffi_fail(fail(OPW_NULL, "%s: %d arguments; it takes %d tensors, the output last, and up to %d attributes",
                             op.name, count, op.tensor_count, op.scalar_count));
    }
    const DLTensor* tensors[max_tensors];
    for (int t = 0; t < op.tensor_count; ++t) {
        const FfiAny& given = arguments[t];
        if (given.type == ffi_dltensor) {
            tensors[t] = static_cast<const DLTensor*>(given.p);
        } else if (given.type == ffi_tensor) {
            tensors[t] = reinterpret_cast<const DLTensor*>(static_cast<const char*>(given.p) +
                                                           ffi_object_header);
        } else if (given.type == ffi_none && op.tensors[t].optional) {
            tensors[t] = nullptr;
        } else {
            return ffi_fail(fail(OPW_NULL, "%s: %s is no tensor", op.name, op.tensors[t].name));
        }
    }
    alignas(16) char attrs[max_attrs] = {};
    std::memcpy(attrs, &op.attrs_size, sizeof op.attrs_size);
    for (int s = 0; s < op.scalar_count; ++s) {
        const ScalarSpec& scalar = op.scalars[s];
        double f = scalar.f;
        std::int64_t i = scalar.i;
        const int at = op.tensor_count + s;
        const bool given = at < count && arguments[at].type != ffi_none;
        if (!given && !scalar.has_default) {
            return ffi_fail(fail(OPW_ATTRIBUTE, "%s: attribute %s has no default: give it", op.name,
                                 scalar.name));
        }
        if (given) {
            const FfiAny& value = arguments[at];
            const bool integral = value.type == ffi_int || value.type == ffi_bool;
            if (!integral && !(scalar.kind == 'f' && value.type == ffi_float)) {
                return ffi_fail(fail(OPW_DTYPE, "%s: attribute %s should be %s", op.name, scalar.name,
                                     scalar.kind == 'f' ? "a number" : "an integer"));
            }
            i = integral ? value.i : 0;
            f = integral ? static_cast<double>(value.i) : value.f;
        }
        if (scalar.kind == 'f') std::memcpy(attrs + scalar.offset, &f, sizeof f);
        if (scalar.kind == 'i') std::memcpy(attrs + scalar.offset, &i, sizeof i);
        if (scalar.kind == 'b') {
            const std::int32_t word = i != 0;
            std::memcpy(attrs + scalar.offset, &word, sizeof word);
        }
    }
    result->type = ffi_none;
    result->padding = 0;
    result->i = 0;
    const int status = run(op, tensors, attrs, nullptr);
    return status == OPW_OK ? 0 : ffi_fail(status);
}

}  // namespace opw::ship
