// A check that is always on. It is for bugs of this library or of the program that uses it, never for errors of a
// device, a peer or a user's input. When it fails, it logs what it found, writes the log lines that wait, and aborts.
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
