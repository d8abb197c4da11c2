// A check that is always on: what it guards is a bug of this library or of the program that uses it, never
// an error of a device, a peer or a user's input. It says what it found and aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace pollcore {

[[noreturn, gnu::cold, gnu::noinline]] inline void check_failed(const char* condition, const char* what,
                                                                const char* file, int line) noexcept {
    std::fprintf(stderr, "pollcore: %s:%d: %s (%s does not hold)\n", file, line, what, condition);
    std::abort();
}

}  // namespace pollcore

#define POLLCORE_CHECK(condition, what)                                          \
    do {                                                                         \
        if (!(condition)) [[unlikely]] {                                         \
            ::pollcore::check_failed(#condition, what, __FILE__, __LINE__);      \
        }                                                                        \
    } while (false)
