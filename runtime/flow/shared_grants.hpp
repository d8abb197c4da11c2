// Grants the receives of a shared receive queue to the peers of the queue pairs that use it. All peers together get no
// more grants than receives are posted, and each peer gets no more than a fixed number.
//
// Thread safety: the control thread makes the object, with room for its grantees. After that, only the worker uses it.
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
    /// A queue pair that gets grants, with the number of its unused grants.
    class Grantee {
    public:
        /// Called when the grantee gets `n` more receives.
        virtual void grants_added(Turn& turn, std::uint32_t n) noexcept = 0;

        /// Receives that are granted to this queue pair and that no message has taken. Its peer may not know of all
        /// these grants yet.
        [[nodiscard]] std::uint32_t unused() const noexcept { return unused_; }
        void add(std::uint32_t n) noexcept { unused_ += n; }
        /// A message takes one of these receives. Returns false if there is none.
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

    /// `each` is the largest number of unused grants that one grantee may have.
    SharedGrants(const RecvQueue& queue, std::uint32_t each, std::size_t grantees) : queue_(queue), each_(each) {
        grantees_.reserve(grantees);
    }

    [[nodiscard]] std::uint32_t each() const noexcept { return each_; }

    /// Unused grants of all grantees together.
    [[nodiscard]] std::uint32_t granted() const noexcept { return granted_; }

    /// Adds the grantee, unless it is there already, and grants receives to it.
    void join(Turn& turn, Grantee& grantee) noexcept {
        if (std::find(grantees_.begin(), grantees_.end(), &grantee) == grantees_.end()) {
            grantees_.push_back(&grantee);
        }
        grant(turn, grantee);
    }
    /// Removes the grantee. The other grantees get the receives that it did not use.
    void leave(Turn& turn, Grantee& grantee) noexcept {
        std::erase(grantees_, &grantee);
        granted_ -= grantee.drop();
        grant(turn);
    }
    /// A message of the grantee's peer has taken a receive. Returns false if the grantee had no grant left; the message
    /// then took a receive of another grantee.
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
    // Grants receives to the grantees in turn. Begins behind the grantee that was served last.
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
    std::size_t next_ = 0;  // index of the grantee that was served last
    std::vector<Grantee*> grantees_;
};

}  // namespace pollcore
