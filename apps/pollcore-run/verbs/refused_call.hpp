// Turns the errors of libpollcore-client into those of the verbs: a null pointer with errno, or an errno value.
//
// Thread safety: any thread.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "pollcore/error.hpp"
#include "told_once.hpp"

namespace pollcore::served {

/// Runs `body`, which returns nothing. Returns 0, or the errno value of what it has thrown.
template <class F>
int error_of(const char* verb, F&& body) noexcept {
    try {
        std::forward<F>(body)();
        return 0;
    } catch (const Error& error) {
        const int code = error.code().value();
        tell_once(fmt::format("{} {}", verb, code), fmt::format("{}: {}", verb, error.what()));
        return code;
    } catch (const std::bad_alloc&) {
        return ENOMEM;
    } catch (const std::exception& error) {
        tell_once(verb, fmt::format("{}: {}", verb, error.what()));
        return EIO;
    }
}

/// Runs `body`, which returns a pointer. Returns a null pointer if it throws, with the reason in errno.
template <class F>
auto made_by(const char* verb, F&& body) noexcept -> decltype(body()) {
    decltype(body()) made = nullptr;
    if (const int error = error_of(verb, [&] { made = body(); }); error != 0) {
        errno = error;
        return nullptr;
    }
    return made;
}

/// Sets errno, for the verbs that return -1 or a null pointer.
template <class T>
T failed(int error, T result) noexcept {
    errno = error;
    return result;
}

}  // namespace pollcore::served
