// Grants the receives of a shared receive queue to the peers of its queue pairs: together no more than are posted, and
// to each no more than its part.
//
// Thread safety: made by the control thread, with room for its grantees; then the worker's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/recv_queue.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class SharedGrants final : public ReceiveWatcher {
public:
    /// One queue pair's part.
    class Grantee {
    public:
        /// It may use `n` more receives.
        virtual void grants_added(Turn& turn, std::uint32_t n) noexcept = 0;

        /// Receives that are granted to it, whether its peer was told or not, and that no message has taken.
        [[nodiscard]] std::uint32_t unused() const noexcept { return unused_; }
        void add(std::uint32_t n) noexcept { unused_ += n; }
        /// A message takes one. False: it has none.
        [[nodiscard]] bool use() noexcept {
            if (unused_ == 0) {
                return false;
            }
            --unused_;
            return true;
        }
        [[nodiscard]] std::uint32_t drop() noexcept { return std::exchange(unused_, 0u); }

    protected:
        ~Grantee() = default;

    private:
        std::uint32_t unused_ = 0;
    };

    /// `each`: the most that one grantee has.
    SharedGrants(const RecvQueue& queue, std::uint32_t each, std::size_t grantees) : queue_(queue), each_(each) {
        grantees_.reserve(grantees);
    }

    [[nodiscard]] std::uint32_t each() const noexcept { return each_; }

    /// Receives that are granted to all of them together, and not used.
    [[nodiscard]] std::uint32_t granted() const noexcept { return granted_; }

    /// The grantee gets its part from now on.
    void join(Turn& turn, Grantee& grantee) noexcept {
        if (std::find(grantees_.begin(), grantees_.end(), &grantee) == grantees_.end()) {
            grantees_.push_back(&grantee);
        }
        grant(turn, grantee);
    }
    /// The others get the receives that it did not use.
    void leave(Turn& turn, Grantee& grantee) noexcept {
        std::erase(grantees_, &grantee);
        granted_ -= grantee.drop();
        grant(turn);
    }
    /// A message has taken one of its receives. False: the grantee had none, so the message took another's.
    [[nodiscard]] bool use(Turn& turn, Grantee& grantee) noexcept {
        if (!grantee.use()) {
            return false;
        }
        --granted_;
        grant(turn, grantee);
        return true;
    }

    void receives_posted(Turn& turn, std::uint32_t) noexcept override { grant(turn); }

private:
    // Goes round the grantees, so that the one whose turn it is gets receives first.
    void grant(Turn& turn) noexcept {
        for (std::size_t i = 0; i < grantees_.size() && granted_ < queue_.size(); ++i) {
            next_ = next_ + 1 < grantees_.size() ? next_ + 1 : 0;
            grant(turn, *grantees_[next_]);
        }
    }
    void grant(Turn& turn, Grantee& grantee) noexcept {
        if (granted_ >= queue_.size()) {
            return;
        }
        const std::uint32_t n = std::min(queue_.size() - granted_, each_ - grantee.unused());
        if (n != 0) {
            granted_ += n;
            grantee.add(n);
            grantee.grants_added(turn, n);
        }
    }

    const RecvQueue& queue_;
    std::uint32_t each_;
    std::uint32_t granted_ = 0;
    std::size_t next_ = 0;  // whose turn it is
    std::vector<Grantee*> grantees_;
};

}  // namespace pollcore
