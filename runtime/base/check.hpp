// A check that is on in every build. It is for bugs of this library or of the program that uses it, never for errors of
// a device, a peer or a user's input. A check that fails logs its condition, waits until the waiting log lines are
// written (for LogWriter::kPatience at most), and aborts.
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
