// A send queue: its requests in flight, its chain, and when it needs a signal. It knows neither flow control nor the
// queue pair's life.
//
// Thread safety: made by the control thread, the worker's from the command that adds its queue pair until the answer to
// the one that forgets it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <infiniband/verbs.h>

#include "base/planted.hpp"
#include "pollcore/handle.hpp"
#include "worker/in_flight.hpp"
#include "worker/turn.hpp"

namespace pollcore {

class SendQueue {
public:
    struct Options {
        std::uint32_t depth = 0;
        std::uint32_t sges_max = 1;
        std::uint32_t signal_interval = 1;  ///< a signal at least this often
        bool coalesce_signals = false;      ///< coalesce() is called for each chain (D49)
    };

    explicit SendQueue(const Options& options)
        : entries_(options.depth, options.sges_max),
          signal_interval_(options.signal_interval),
          coalesces_(options.coalesce_signals) {}
    SendQueue(const SendQueue&) = delete;  // it points into itself
    SendQueue& operator=(const SendQueue&) = delete;

    /// The provider's queue pair; null: it is gone.
    void set_provider(ibv_qp* qp) noexcept { qp_ = qp; }
    [[nodiscard]] ibv_qp* provider() const noexcept { return qp_; }

    [[nodiscard]] InFlightTable& entries() noexcept { return entries_; }
    [[nodiscard]] const InFlightTable& entries() const noexcept { return entries_; }

    // ---- What a step may take ----

    /// Requests that it may still take in this step, of WorkerOptions::qp_burst.
    [[nodiscard]] [[gnu::always_inline]] std::uint32_t budget_left(const Turn& turn) noexcept {
        if (budget_step_ != turn.number()) {
            budget_step_ = turn.number();
            budget_used_ = 0;
        }
        return turn.options.qp_burst - std::min(budget_used_, turn.options.qp_burst);
    }
    void use_budget(std::uint32_t n) noexcept { budget_used_ += n; }
    /// Takes one of the budget. False: there is none left.
    [[nodiscard]] [[gnu::always_inline]] bool take_budget(const Turn& turn) noexcept {
        const bool left = budget_left(turn) != 0;
        budget_used_ += left;
        return left;
    }

    // ---- Signals ----

    /// True: the next request needs a signal, even if nobody asks for it. Without one, unsignaled requests could fill
    /// the queue.
    [[nodiscard]] bool must_signal() const noexcept {
        return !planted(Bug::wedged) && unsignaled_run_ + 1 >= signal_interval_;
    }
    void count_signal(bool signaled) noexcept { unsignaled_run_ = signaled ? 0 : unsignaled_run_ + 1; }
    /// A request that may have carried a signal was not posted, so the next one gets a signal.
    void signal_next() noexcept { unsignaled_run_ = signal_interval_; }

    // ---- The chain ----

    [[nodiscard]] ibv_send_wr** chain_end() noexcept { return chain_end_; }
    void set_chain_end(ibv_send_wr** end) noexcept { chain_end_ = end; }
    void append(ibv_send_wr& wr) noexcept {
        *chain_end_ = &wr;
        chain_end_ = &wr.next;
    }
    /// Takes the chain, which is to be posted.
    [[nodiscard]] ibv_send_wr* take_chain() noexcept {
        *std::exchange(chain_end_, &chain_) = nullptr;
        return std::exchange(chain_, nullptr);
    }
    [[nodiscard]] bool coalesces() const noexcept { return coalesces_; }
    /// Leaves all signals of the chain to its last request. The others then complete with that one (D49).
    void coalesce(ibv_send_wr& chain) noexcept;
    /// Requests of the chain that was posted last complete only with the one at its end.
    [[nodiscard]] bool has_covered() const noexcept { return has_covered_; }
    /// Posts the chain. Returns the first request that the provider refused; null: none.
    [[nodiscard]] [[gnu::always_inline]] ibv_send_wr* post(Turn& turn, ibv_send_wr* chain) noexcept {
        ibv_send_wr* bad = nullptr;
        turn.counters.send_doorbells.add();
        if (ibv_post_send(qp_, chain, &bad) == 0) [[likely]] {
            return nullptr;
        }
        return bad != nullptr ? bad : chain;
    }
    /// A refused work request was never in the queue. Its place is given back at once: refused requests among others
    /// would take the room that those were promised. Requests behind it in its chain move up.
    [[nodiscard]] InFlightEntry take_refused(Turn& turn, ibv_send_wr& bad) noexcept;

    /// Posts one work request by itself, with its entry: one of the runtime's own, an announcement, or a bind. `post`
    /// gets the provider's queue pair, the wr_id and the entry, and returns the provider's result. False: the work
    /// request was refused, and has no entry any more.
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
    /// Posts `wr` by itself, with its entry, and sets its wr_id.
    [[nodiscard]] bool post_now(Turn& turn, QpHandle handle, const InFlightEntry& entry, ibv_send_wr& wr) noexcept {
        return post_now(turn, handle, entry, [&](ibv_qp* qp, std::uint64_t wr_id, const InFlightEntry&) {
            wr.wr_id = wr_id;
            ibv_send_wr* bad = nullptr;
            return ibv_post_send(qp, &wr, &bad);
        });
    }

    // ---- Failures ----

    /// In this life a request has failed, or its completion was lost. All requests behind it must complete, signaled or
    /// not, since flushed requests do.
    [[nodiscard]] bool failed() const noexcept { return failed_; }
    void fail() noexcept { failed_ = true; }
    /// A life begins, with nothing in flight.
    void begin_life() noexcept {
        unsignaled_run_ = 0;
        failed_ = false;
    }

private:
    // A send and its completion look at these.
    ibv_qp* qp_ = nullptr;
    ibv_send_wr* chain_ = nullptr;
    ibv_send_wr** chain_end_ = &chain_;
    InFlightTable entries_;
    std::uint64_t budget_step_ = 0;  // the step that budget_used_ counts
    std::uint32_t budget_used_ = 0;
    std::uint32_t unsignaled_run_ = 0;
    std::uint32_t signal_interval_;
    bool failed_ = false;
    bool coalesces_ = false;
    bool has_covered_ = false;
};

}  // namespace pollcore
