// The C library's dlsym(3). This library has a dlsym() of its own, which finds its own functions first.
//
// Thread safety: any thread.
#pragma once

namespace pollcore::served {

[[nodiscard]] void* genuine_dlsym(void* handle, const char* name) noexcept;

}  // namespace pollcore::served
