// The queue pairs of a worker that went into error since the control thread last looked: a bit for each index. So a
// failure needs no memory, and no number of failures can be too many.
//
// Thread safety: the worker calls add(), the control thread all other functions.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pollcore/limits.hpp"

namespace pollcore {

class alignas(kCacheLine) FailedQps {
public:
    explicit FailedQps(std::size_t qps_max) : words_((qps_max + 63) / 64) {}

    void add(std::uint16_t index) noexcept {
        words_[index / 64].fetch_or(bit(index), std::memory_order_relaxed);
        any_.store(true, std::memory_order_release);
    }
    /// Drops the failure of a queue pair that has begun a new life, or of an earlier queue pair with this index.
    void forget(std::uint16_t index) noexcept { words_[index / 64].fetch_and(~bit(index), std::memory_order_relaxed); }
    [[nodiscard]] bool contains(std::uint16_t index) const noexcept {
        return (words_[index / 64].load(std::memory_order_relaxed) & bit(index)) != 0;
    }
    /// Calls `failed` with each index, and forgets it.
    template <class F>
    void take(F&& failed) {
        if (!any_.load(std::memory_order_relaxed) || !any_.exchange(false, std::memory_order_acq_rel)) {
            return;
        }
        for (std::size_t word = 0; word < words_.size(); ++word) {
            for (std::uint64_t left = words_[word].exchange(0, std::memory_order_relaxed); left != 0;
                 left &= left - 1) {
                failed(static_cast<std::uint16_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(left))));
            }
        }
    }

private:
    [[nodiscard]] static constexpr std::uint64_t bit(std::uint16_t index) noexcept {
        return std::uint64_t{1} << (index % 64);
    }

    std::vector<std::atomic<std::uint64_t>> words_;
    alignas(kCacheLine) std::atomic<bool> any_{false};
};

}  // namespace pollcore
