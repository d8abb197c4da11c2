// A send queue: its requests in flight, its chain, and the choice of requests that need a signal. It does not depend on
// flow control or on the queue pair's life.
//
// Thread safety: the control thread makes the object. It belongs to the worker from the command that adds its queue
// pair until the worker has answered the command that forgets the queue pair.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <infiniband/verbs.h>

#include "base/planted.hpp"
#include "pollcore/counter.hpp"
#include "pollcore/handle.hpp"
#include "worker/in_flight.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class SendQueue {
public:
    struct Options {
        std::uint32_t depth = 0;
        std::uint32_t sges_max = 1;
        std::uint16_t signal_interval = 1;  ///< at least one of this many requests in a row has a signal
        bool coalesce_signals = false;      ///< true if coalesce() is called for each chain (D49)
    };

    explicit SendQueue(const Options& options)
        : entries_(options.depth, options.sges_max),
          signal_interval_(options.signal_interval),
          coalesces_(options.coalesce_signals) {}
    SendQueue(const SendQueue&) = delete;  // chain_end_ points into the object
    SendQueue& operator=(const SendQueue&) = delete;

    /// Sets the provider's queue pair; null means that it is gone.
    void set_provider(ibv_qp* qp) noexcept { qp_ = qp; }
    [[nodiscard]] ibv_qp* provider() const noexcept { return qp_; }

    [[nodiscard]] InFlightTable& entries() noexcept { return entries_; }
    [[nodiscard]] const InFlightTable& entries() const noexcept { return entries_; }

    // ---- Requests that a step may take ----

    /// The number of requests that the queue pair may still take in this step, for its send queue and its receive queue
    /// together. Each step grants WorkerOptions::qp_burst.
    [[nodiscard]] [[gnu::always_inline]] std::uint32_t budget_left(const Turn& turn) noexcept {
        if (const auto step = static_cast<std::uint32_t>(turn.number()); budget_step_ != step) {
            budget_step_ = step;
            budget_used_ = 0;
        }
        return turn.options.qp_burst - std::min<std::uint32_t>(budget_used_, turn.options.qp_burst);
    }
    void use_budget(std::uint32_t n) noexcept { budget_used_ = static_cast<std::uint16_t>(budget_used_ + n); }
    /// Takes one request from the budget. Returns false if the budget of this step is used up.
    [[nodiscard]] [[gnu::always_inline]] bool take_budget(const Turn& turn) noexcept {
        const bool left = budget_left(turn) != 0;
        use_budget(left);
        return left;
    }

    // ---- Figures ----

    /// Counts requests of sessions that are given to the provider, and the bytes that they send, write or read.
    [[gnu::always_inline]] void count(std::uint32_t requests, std::uint64_t bytes) noexcept {
        requests_.add(requests);
        bytes_.add(bytes);
    }
    // Any thread may read the counts.
    [[nodiscard]] std::uint32_t requests() const noexcept { return requests_.value(); }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.value(); }

    // ---- Signals ----

    /// Returns true if the next request must be signaled, even if the application does not ask for a signal. Without
    /// this, unsignaled requests could fill the queue.
    [[nodiscard]] bool must_signal() const noexcept {
        return !planted(Bug::wedged) && unsignaled_run_ + 1 >= signal_interval_;
    }
    void count_signal(bool signaled) noexcept {
        unsignaled_run_ = signaled ? std::uint16_t{0} : static_cast<std::uint16_t>(unsignaled_run_ + 1);
    }
    /// Called when a request was not posted. The request may have had a signal, so the next request gets one.
    void signal_next() noexcept { unsignaled_run_ = signal_interval_; }

    // ---- The chain ----

    [[nodiscard]] ibv_send_wr** chain_end() noexcept { return chain_end_; }
    void set_chain_end(ibv_send_wr** end) noexcept { chain_end_ = end; }
    void append(ibv_send_wr& wr) noexcept {
        *chain_end_ = &wr;
        chain_end_ = &wr.next;
    }
    /// Removes the chain from the queue and returns it. The caller posts it.
    [[nodiscard]] ibv_send_wr* take_chain() noexcept {
        *std::exchange(chain_end_, &chain_) = nullptr;
        return std::exchange(chain_, nullptr);
    }
    [[nodiscard]] bool coalesces() const noexcept { return coalesces_; }
    /// Moves all signals of the chain to its last request. The requests that had a signal complete together with a
    /// later request (D49).
    void coalesce(ibv_send_wr& chain) noexcept;
    /// Returns true if some requests of the last coalesced chain complete only together with a later request.
    [[nodiscard]] bool has_covered() const noexcept { return has_covered_; }
    /// Posts the chain. Returns the first request that the provider refused, or null if it refused none.
    [[nodiscard]] [[gnu::always_inline]] ibv_send_wr* post(Turn& turn, ibv_send_wr* chain) noexcept {
        ibv_send_wr* bad = nullptr;
        turn.counters.send_doorbells.add();
        if (ibv_post_send(qp_, chain, &bad) == 0) [[likely]] {
            return nullptr;
        }
        return bad != nullptr ? bad : chain;
    }
    /// Removes the entry of a work request that the provider refused, and returns the entry. Requests behind it in its
    /// chain move up by one position. The place is free at once, so that refused requests do not take up room that
    /// others were promised.
    [[nodiscard]] InFlightEntry take_refused(Turn& turn, ibv_send_wr& bad) noexcept;

    /// Adds `entry` and posts its work request alone. Used for the runtime's own requests, announcements and binds.
    /// `post` gets the provider's queue pair, the wr_id and the entry; it posts, and returns the provider's result. If
    /// the provider refuses the work request, removes the entry and returns false.
    template <class Post>
    [[nodiscard]] bool post_now(Turn& turn, QpHandle handle, const InFlightEntry& entry, Post&& post) noexcept {
        const std::uint32_t position = entries_.next_position();
        InFlightEntry& pushed = entries_.push();
        pushed = entry;
        turn.counters.send_doorbells.add();
        if (post(qp_, WrId{handle, false, position}.pack(), pushed) == 0) [[likely]] {
            return true;
        }
        turn.counters.post_failures.add();
        (void)entries_.pop_back();
        return false;
    }
    /// Adds `entry`, sets the wr_id of `wr`, and posts `wr` alone. If the provider refuses `wr`, removes the entry and
    /// returns false.
    [[nodiscard]] bool post_now(Turn& turn, QpHandle handle, const InFlightEntry& entry, ibv_send_wr& wr) noexcept {
        return post_now(turn, handle, entry, [&](ibv_qp* qp, std::uint64_t wr_id, const InFlightEntry&) {
            wr.wr_id = wr_id;
            ibv_send_wr* bad = nullptr;
            return ibv_post_send(qp, &wr, &bad);
        });
    }

    // ---- Failures ----

    /// Returns true if a request has failed in this life, or if the completion of a request was lost. After that every
    /// request must complete, even an unsignaled one, because a flushed request always completes.
    [[nodiscard]] bool failed() const noexcept { return failed_; }
    void fail() noexcept { failed_ = true; }
    /// Called when a life begins. Nothing is in flight.
    void begin_life() noexcept {
        unsignaled_run_ = 0;
        failed_ = false;
    }

private:
    // Read by each send and its completion. The small types make room for the figures in the same two cache lines
    // (D12).
    ibv_qp* qp_ = nullptr;
    ibv_send_wr* chain_ = nullptr;
    ibv_send_wr** chain_end_ = &chain_;
    InFlightTable entries_;
    Counter bytes_;
    SmallCounter requests_;
    std::uint32_t budget_step_ = 0;  // the step for which budget_used_ holds, modulo 2^32
    std::uint16_t budget_used_ = 0;
    std::uint16_t unsignaled_run_ = 0;
    std::uint16_t signal_interval_;
    bool failed_ : 1 = false;
    bool coalesces_ : 1 = false;
    bool has_covered_ : 1 = false;
};
static_assert(sizeof(SendQueue) == 80, "its part of the two lines of a WorkerQp");

}  // namespace pollcore
