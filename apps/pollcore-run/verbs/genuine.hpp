// The functions of the genuine libibverbs. This library passes calls to them that are about devices which no daemon
// serves.
//
// Thread safety: any thread.
#pragma once

namespace pollcore::served {

/// A function of libibverbs.so.1, or a null pointer if this version of libibverbs does not have it. Throws nothing;
/// returns a null pointer, too, if there is no libibverbs.
[[nodiscard]] void* find_genuine(const char* name) noexcept;

/// For functions that every libibverbs has: ends the process with a line on standard error if there is none.
[[nodiscard]] void* need_genuine(const char* name) noexcept;

}  // namespace pollcore::served

/// The genuine function of this name.
#define POLLCORE_GENUINE(function)                                                                \
    ([]() noexcept {                                                                              \
        static auto* const found =                                                                \
            reinterpret_cast<decltype(&(function))>(::pollcore::served::need_genuine(#function)); \
        return found;                                                                             \
    }())
