#include "session/completion_inbox.hpp"

#include "base/clock.hpp"

namespace pollcore {

[[gnu::noinline]] void CompletionInbox::keep_reply() noexcept {
    if (awaited_ != kKept) {
        awaited_ = read_reply(kept_) ? kKept : 0;
    }
}

[[gnu::noinline]] void CompletionInbox::sampled(std::uint32_t since) noexcept {
    const auto now = static_cast<std::uint32_t>(cycles_now());
    stages_.completion_ring.add(since, now);
    trace_.note({since | std::uint64_t{now} << 32});
}

}  // namespace pollcore
