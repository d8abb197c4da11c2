// The session's part of send pools: how buffers come back.
#include <utility>
#include <vector>

#include "session/send_pool_core.hpp"
#include "session/session_core.hpp"

namespace pollcore {

// ---- The session's part ----

void SessionCore::add_send_pool(std::shared_ptr<SendPoolCore> pool) {
    drop_send_pools();
    send_pools_.push_back(std::move(pool));
    attention_ |= kSendPools;
}

// Ends the memory of pools that the program has destroyed and whose requests have completed. That is a control call, so
// poll() does not do it.
void SessionCore::drop_send_pools() noexcept {
    std::erase_if(send_pools_, [](const auto& pool) { return pool->may_go(); });
    if (send_pools_.empty()) {
        attention_ &= static_cast<std::uint8_t>(~kSendPools);
    }
}

// Gives buffers back, and leaves only the completions that the program is to see. Returns their number.
template <class Record>
std::size_t SessionCore::take_back(std::span<Record> taken) noexcept {
    std::size_t kept = 0;
    for (Record& completion : taken) {
        auto how = SendPoolCore::Taken::no;
        for (auto pool = send_pools_.begin(); pool != send_pools_.end() && how == SendPoolCore::Taken::no; ++pool) {
            how = (*pool)->take_back(completion);
        }
        if (how != SendPoolCore::Taken::quietly) {
            if (&taken[kept] != &completion) {
                taken[kept] = completion;
            }
            ++kept;
        }
    }
    return kept;
}
template std::size_t SessionCore::take_back(std::span<Completion> taken) noexcept;
template std::size_t SessionCore::take_back(std::span<WideCompletion> taken) noexcept;

void SessionCore::leave_send_pools() noexcept {
    for (const auto& pool : send_pools_) {
        pool->leave_session();
    }
}

}  // namespace pollcore
