// Calls on NumPy arrays that were made before, made again without running any Python: what depends on types,
// shapes, strides and attributes was settled by the first call, and only addresses are new.
//
// Part of inprocess.cpp. CPython's functions are declared here, as its stable ABI has them, so that no header
// of Python is needed; they are weak, so that the library also loads where there is none of them.
#pragma once

#define OPW_PYTHON extern "C" __attribute__((weak))

namespace py {

struct Object {  // of a build with the GIL
    std::intptr_t references;
    Object* type;
};

// NumPy's own promise to compiled extensions (its C API, PyArrayObject): the same in 1.x and 2.x.
struct Array {
    Object head;
    char* data;
    int rank;
    const std::intptr_t* shape;
    const std::intptr_t* strides;  // in bytes
    Object* base;
    Object* dtype;
    int flags;
};

constexpr int kAligned = 0x0100, kWritable = 0x0400;
constexpr int kEqual = 2;  // of the comparisons

struct Method {
    const char* name;
    Object* (*function)(Object* self, Object* const* arguments, std::intptr_t count);
    int flags;
    const char* documentation;
};

constexpr int kFastCall = 0x0080;

}  // namespace py

OPW_PYTHON py::Object* PyCFunction_NewEx(py::Method*, py::Object* self, py::Object* module);
OPW_PYTHON py::Object* PyCapsule_New(void*, const char* name, void (*destructor)(py::Object*));
OPW_PYTHON void* PyCapsule_GetPointer(py::Object*, const char* name);
OPW_PYTHON std::intptr_t PyTuple_Size(py::Object*);
OPW_PYTHON py::Object* PyTuple_GetItem(py::Object*, std::intptr_t index);
OPW_PYTHON std::intptr_t PyDict_Size(py::Object*);
OPW_PYTHON int PyDict_Next(py::Object*, std::intptr_t* at, py::Object** key, py::Object** value);
OPW_PYTHON py::Object* PyObject_Call(py::Object* function, py::Object* arguments, py::Object* named);
OPW_PYTHON py::Object* PyObject_GetAttr(py::Object*, py::Object* name);
OPW_PYTHON int PyObject_RichCompareBool(py::Object*, py::Object*, int comparison);
OPW_PYTHON py::Object* PyUnicode_InternFromString(const char*);
OPW_PYTHON void PyErr_SetString(py::Object* type, const char* text);
OPW_PYTHON void PyErr_Clear();
OPW_PYTHON void Py_IncRef(py::Object*);
OPW_PYTHON void Py_DecRef(py::Object*);
OPW_PYTHON void* PyEval_SaveThread();
OPW_PYTHON void PyEval_RestoreThread(void*);
extern "C" __attribute__((weak)) py::Object _Py_NoneStruct;

namespace {

// A reference to a Python object; made and dropped with the GIL held.
class Kept {
  public:
    explicit Kept(py::Object* object) : object_(object) { Py_IncRef(object); }
    Kept(Kept&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Kept& operator=(Kept&&) = delete;
    ~Kept() {
        if (object_) Py_DecRef(object_);
    }
    py::Object* get() const { return object_; }
    bool is(const py::Object* other) const { return object_ == other; }
    bool equals(py::Object* other) const {
        const int equal = PyObject_RichCompareBool(object_, other, py::kEqual);
        if (equal < 0) PyErr_Clear();
        return equal > 0;
    }

  private:
    py::Object* object_;
};

py::Object* array_type = nullptr;  // numpy.ndarray
py::Object* numpy_empty = nullptr;
py::Object* kernel_error = nullptr;
py::Object *kind_name = nullptr, *memory_name = nullptr;

// What `object` holds by that name, alive as long as it is; null where it has none.
py::Object* held_by(py::Object* object, py::Object* name) {
    py::Object* held = PyObject_GetAttr(object, name);
    if (!held) {
        PyErr_Clear();
        return nullptr;
    }
    Py_DecRef(held);
    return held;
}

// Whether an input is left out: the kernel gets null.
bool is_none(const py::Object* object) { return object == &_Py_NoneStruct; }

// The array that a kernel gets of an argument: itself, or the `memory` of a packed one.
const py::Array& array_of(py::Object* object) {
    return *reinterpret_cast<const py::Array*>(object->type == array_type ? object
                                                                          : held_by(object, memory_name));
}

// Of an array its element type, shape and strides; of a packed argument its `kind`, the same for all that
// differ in their bytes alone.
struct Form {
    explicit Form(py::Object* object)
        : type(object->type),
          kind(is_none(object)                ? object
               : object->type == array_type ? array_of(object).dtype
                                            : held_by(object, kind_name)) {
        if (object->type != array_type) return;
        const py::Array& array = array_of(object);
        shape.assign(array.shape, array.shape + array.rank);
        strides.assign(array.strides, array.strides + array.rank);
    }

    bool fits(py::Object* object) const {
        if (!type.is(object->type)) return false;
        if (is_none(object)) return true;
        if (object->type != array_type) return kind.is(held_by(object, kind_name));
        const py::Array& array = array_of(object);
        const std::size_t rank = shape.size(), bytes = rank * sizeof(std::intptr_t);
        return array.rank == static_cast<int>(rank) && (array.flags & py::kAligned) != 0 &&
               (rank == 0 || (std::memcmp(array.shape, shape.data(), bytes) == 0 &&
                              std::memcmp(array.strides, strides.data(), bytes) == 0)) &&
               (kind.is(array.dtype) || kind.equals(array.dtype));  // unpickled types are objects of their own
    }

    Kept type, kind;
    std::vector<std::intptr_t> shape, strides;
};

// A call as it was made: its arguments, compared one by one, and what came of them.
struct Remembered {
    explicit Remembered(py::Object* new_output) : blank(new_output) {}

    std::intptr_t count = 0;             // of the arguments in order, which leave out what only None follows
    std::vector<Form> forms;             // of the inputs, then of the output
    std::vector<std::intptr_t> spans;    // bytes from the first element to the end of the last
    std::vector<Kept> more;              // the attributes that were given in order
    std::vector<std::pair<Kept, Kept>> named;
    Kept blank;                          // what numpy.empty makes an output of; none where it shall not
    std::string threads_wanted;
    const void* kernel = nullptr;
    std::string name;
    std::string values;
    std::int64_t threads = 1;
};

const char* threads_wanted() {
    const char* text = std::getenv("OPWRIGHT_THREADS");
    return text ? text : "";
}

py::Object* input_of(py::Object* arguments, std::intptr_t count, std::size_t i) {
    return static_cast<std::intptr_t>(i) < count ? PyTuple_GetItem(arguments, i) : &_Py_NoneStruct;
}

// The calls of one operator.
class FastCalls {
  public:
    static constexpr std::size_t kMost = 64, kMostTensors = 16;

    // A new reference to the output, which is made where `out` is null; null for a call that was not made
    // before, and where the kernel threw or there is no memory, which is then Python's error.
    py::Object* call(py::Object* arguments, py::Object* named, py::Object* out, bool* thrown) {
        const std::intptr_t count = PyTuple_Size(arguments);
        for (const auto& remembered : calls_) {
            void* tensors[kMostTensors];
            if (!matches(*remembered, arguments, count, named, out, tensors)) continue;
            const std::shared_ptr<const Remembered> kept = remembered;  // whatever clear() does meanwhile
            py::Object* result = out;
            if (out) {
                Py_IncRef(out);
            } else {
                result = PyObject_Call(numpy_empty, kept->blank.get(), nullptr);
                if (!result) {
                    *thrown = true;
                    return nullptr;
                }
                tensors[kept->forms.size() - 1] = array_of(result).data;
            }
            void* const state = PyEval_SaveThread();
            const char* text;
            {
                const opw::host::Grant grant(pool(), kept->threads);
                text = enter(kept->kernel, tensors, kept->values.data(), grant);
            }
            PyEval_RestoreThread(state);
            if (text) {
                *thrown = true;
                Py_DecRef(result);
                PyErr_SetString(kernel_error, (kept->name + " threw " + text).c_str());
                return nullptr;
            }
            return result;
        }
        return nullptr;
    }

    void keep(std::shared_ptr<const Remembered> call) {
        if (calls_.size() < kMost) {
            calls_.push_back(std::move(call));
        } else {
            calls_[next_++ % kMost] = std::move(call);
        }
    }

    void clear() { calls_.clear(); }

  private:
    static bool matches(const Remembered& call, py::Object* arguments, std::intptr_t count,
                        py::Object* named, py::Object* out, void** tensors) {
        const std::size_t inputs = call.forms.size() - 1;
        if (count != call.count) return false;
        for (std::size_t i = 0; i < inputs; ++i) {
            py::Object* object = input_of(arguments, count, i);
            if (!call.forms[i].fits(object)) return false;
            tensors[i] = is_none(object) ? nullptr : array_of(object).data;
        }
        if (out ? !fits_output(call, out, tensors) : call.blank.is(&_Py_NoneStruct)) return false;
        for (std::size_t i = 0; i < call.more.size(); ++i) {
            if (!call.more[i].is(PyTuple_GetItem(arguments, inputs + i))) return false;
        }
        if (PyDict_Size(named) != static_cast<std::intptr_t>(call.named.size())) return false;
        std::intptr_t at = 0;
        py::Object *key, *value;
        for (const auto& [name, given] : call.named) {
            if (!PyDict_Next(named, &at, &key, &value) || !name.is(key) || !given.is(value)) return false;
        }
        return call.threads_wanted == threads_wanted();
    }

    // Whether `out` can be written as the first call's was, and overlaps no input.
    static bool fits_output(const Remembered& call, py::Object* out, void** tensors) {
        const std::size_t inputs = call.forms.size() - 1;
        if (!call.forms[inputs].fits(out)) return false;
        const py::Array& array = array_of(out);
        tensors[inputs] = array.data;
        const auto low = reinterpret_cast<std::intptr_t>(array.data), high = low + call.spans[inputs];
        for (std::size_t i = 0; i < inputs; ++i) {
            const auto begin = reinterpret_cast<std::intptr_t>(tensors[i]), end = begin + call.spans[i];
            if (begin < high && low < end) return false;
        }
        return (array.flags & py::kWritable) != 0;
    }

    std::vector<std::shared_ptr<const Remembered>> calls_;
    std::size_t next_ = 0;
};

py::Object* nothing() {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

// call(arguments, named, out): out, or a new array where that is None; None for a call not made before.
py::Object* call_fast(py::Object* self, py::Object* const* given, std::intptr_t count) {
    if (count != 3) return nothing();
    auto* calls = static_cast<FastCalls*>(PyCapsule_GetPointer(self, nullptr));
    bool thrown = false;
    py::Object* out = given[2] == &_Py_NoneStruct ? nullptr : given[2];
    py::Object* found = calls->call(given[0], given[1], out, &thrown);
    return found || thrown ? found : nothing();
}

}  // namespace

// All of the following need the GIL.

// Whether arrays lie in memory as this file says. `sample` is a 2 x 2 view of float32, 12 and 4 bytes apart,
// at `address`.
OPW_EXPORT bool opw_fast_ready(py::Object* sample, py::Object* type, py::Object* empty, py::Object* error,
                               void* address, py::Object* dtype) {
    if (!PyCFunction_NewEx || !PyCapsule_New || !PyCapsule_GetPointer || !PyTuple_Size ||
        !PyTuple_GetItem || !PyDict_Size || !PyDict_Next || !PyErr_SetString || !Py_IncRef || !Py_DecRef ||
        !PyEval_SaveThread || !PyEval_RestoreThread || !PyObject_Call || !PyObject_GetAttr ||
        !PyObject_RichCompareBool || !PyUnicode_InternFromString || !PyErr_Clear || !&_Py_NoneStruct ||
        sample->type != type) {
        return false;
    }
    const auto& array = *reinterpret_cast<const py::Array*>(sample);
    if (array.data != address || array.rank != 2 || array.dtype != dtype || array.shape[0] != 2 ||
        array.shape[1] != 2 || array.strides[0] != 12 || array.strides[1] != 4 ||
        (array.flags & 0x0F0F) != (py::kAligned | py::kWritable)) {
        return false;
    }
    array_type = type;
    numpy_empty = empty;
    kernel_error = error;  // all three live as long as their modules
    kind_name = PyUnicode_InternFromString("kind");
    memory_name = PyUnicode_InternFromString("memory");
    return true;
}

// A function for the calls of one operator, which owns them; `*calls` is for the functions below.
OPW_EXPORT py::Object* opw_fast_new(void** calls) {
    static py::Method method{"call", &call_fast, py::kFastCall, nullptr};
    auto* made = new FastCalls;
    *calls = made;
    py::Object* self = PyCapsule_New(made, nullptr, [](py::Object* capsule) {
        delete static_cast<FastCalls*>(PyCapsule_GetPointer(capsule, nullptr));
    });
    py::Object* function = PyCFunction_NewEx(&method, self, nullptr);
    Py_DecRef(self);  // the function has it now
    return function;
}

// Remembers a call of `inputs` arrays, packed arguments or None and then attributes, in `arguments`, which may
// end before inputs that are None; the attributes in `named`; and the array `out`. No array has negative
// strides. `blank` has the arguments of numpy.empty for an array like `out`, or is None. `item_sizes` are in
// bytes, of the inputs and of `out`; `values` are `count` words of 8 bytes.
OPW_EXPORT void opw_fast_keep(void* calls, py::Object* arguments, py::Object* named, py::Object* out,
                              py::Object* blank, std::int64_t inputs, const std::int64_t* item_sizes,
                              const void* kernel, const char* name, const char* values, std::int64_t count,
                              std::int64_t threads) {
    if (inputs >= static_cast<std::int64_t>(FastCalls::kMostTensors)) return;
    auto call = std::make_shared<Remembered>(blank);
    call->count = PyTuple_Size(arguments);
    for (std::int64_t i = 0; i <= inputs; ++i) {
        py::Object* object = i < inputs ? input_of(arguments, call->count, i) : out;
        if (is_none(object)) {
            call->forms.emplace_back(object);
            call->spans.push_back(0);
            continue;
        }
        const py::Array& array = array_of(object);
        std::intptr_t span = item_sizes[i];
        for (int d = 0; d < array.rank; ++d) span += array.strides[d] * (array.shape[d] - 1);
        for (int d = 0; d < array.rank; ++d) span = array.shape[d] == 0 ? 0 : span;
        call->forms.emplace_back(object);
        call->spans.push_back(span);
    }
    for (std::intptr_t i = inputs; i < PyTuple_Size(arguments); ++i) {
        call->more.emplace_back(PyTuple_GetItem(arguments, i));
    }
    std::intptr_t at = 0;
    py::Object *key, *value;
    while (PyDict_Next(named, &at, &key, &value)) call->named.emplace_back(Kept(key), Kept(value));
    call->threads_wanted = threads_wanted();
    call->kernel = kernel;
    call->name = name;
    call->values.assign(values, static_cast<std::size_t>(8 * count));
    call->threads = threads;
    static_cast<FastCalls*>(calls)->keep(std::move(call));
}

OPW_EXPORT void opw_fast_clear(void* calls) { static_cast<FastCalls*>(calls)->clear(); }
