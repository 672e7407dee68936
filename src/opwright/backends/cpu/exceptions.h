// Words for an exception out of a kernel.
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <typeinfo>

namespace opw::host {

// The type of the exception in flight and its what(); call inside a catch. A kernel with a C++
// library of its own (zig links one into each) has a std::exception of its own, so only the type.
inline std::string describe_exception() {
    std::string name = "an exception";
    if (const std::type_info* type = abi::__cxa_current_exception_type()) {
        int status = 0;
        char* readable = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
        name = readable ? readable : type->name();
        std::free(readable);
    }
    try {
        throw;
    } catch (const std::exception& error) {
        return name + ": " + error.what();
    } catch (...) {
        return name;
    }
}

}  // namespace opw::host
