// Debug builds check that one thread uses a session. In a header, so that in a release build nothing is left of it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/check.hpp"
#include "pollcore/session.hpp"

namespace pollcore {

inline void Session::assert_owner() noexcept {
#ifndef NDEBUG
    static std::atomic<std::uint64_t> next_id{1};
    thread_local const std::uint64_t self = next_id.fetch_add(1, std::memory_order_relaxed);
    if (owner_ == 0) {
        owner_ = self;
    }
    POLLCORE_CHECK(owner_ == self, "a session is used by one thread");
#endif
}

}  // namespace pollcore
