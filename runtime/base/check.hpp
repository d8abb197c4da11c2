// A check that is always on: what it guards is a bug of this library or of the program that uses it, never
// an error of a device, a peer or a user's input. It logs what it found, writes the log lines that wait, and aborts.
#pragma once

namespace pollcore {

[[noreturn, gnu::cold]] void check_failed(const char* condition, const char* what, const char* file, int line) noexcept;

}  // namespace pollcore

#define POLLCORE_CHECK(condition, what)                                     \
    do {                                                                    \
        if (!(condition)) [[unlikely]] {                                    \
            ::pollcore::check_failed(#condition, what, __FILE__, __LINE__); \
        }                                                                   \
    } while (false)
