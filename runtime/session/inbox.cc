#include "session/inbox.hpp"

#include "base/clock.hpp"

namespace pollcore {

[[gnu::noinline]] void Inbox::keep_reply() noexcept {
    if (awaited_ != kKept) {
        awaited_ = read_reply(kept_) ? kKept : 0;
    }
}

[[gnu::noinline]] void Inbox::sampled(std::uint32_t since) noexcept {
    stages_.completion_ring.add(since, static_cast<std::uint32_t>(cycles_now()));
}

}  // namespace pollcore
