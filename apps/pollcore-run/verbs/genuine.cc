#include "genuine.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include <fmt/format.h>

#include "symbol_lookup.hpp"
#include "told_once.hpp"

namespace pollcore::served {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

}  // namespace

void* find_genuine(const char* name) noexcept {
    // A search that begins at a library finds the library's own functions, whatever was preloaded.
    static void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : genuine_dlsym(library, name);
}

void* need_genuine(const char* name) noexcept {
    void* const found = find_genuine(name);
    if (found == nullptr) {
        tell_once(name, fmt::format("{} has no {}; is libibverbs1 installed?", kLibrary, name));
        std::abort();
    }
    return found;
}

}  // namespace pollcore::served
