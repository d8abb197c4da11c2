// A completion queue, as the worker sees it: how far the worker has emptied it, and whether it is polled and armed.
//
// Thread safety: the control thread makes the object. It belongs to the worker from the command AddCq until the worker
// has answered RemoveCq.
#pragma once

#include <cstdint>
#include <utility>

#include <infiniband/verbs.h>

#include "device/completion_channel.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

class WorkerSession;

class alignas(kCacheLine) WorkerCq {
public:
    struct Options {
        ibv_cq* cq = nullptr;
        /// the extended form of `cq`, polled with ibv_start_poll (D36); null if `cq` is polled with ibv_poll_cq
        ibv_cq_ex* extended = nullptr;
        bool next_poll = true;     ///< DeviceLimits::next_poll (D35)
        bool device_time = false;  ///< made with CqOptions::device_time, so `extended` is not null (D37)
        /// Another process has the context's command descriptor. With queue pairs of its own it can put completions of
        /// any wr_id here.
        bool shared = false;
        std::uint32_t id = 0;                  ///< the control thread's name for the CQ; never reused, unlike an index
        std::uint32_t depth = 0;               ///< number of CQEs that the CQ can hold
        CompletionChannel* channel = nullptr;  ///< the device's channel; null if the CQ raises no events
    };
    /// A point in time, for emptied_since().
    struct Mark {
        std::uint64_t emptied = 0;
        std::uint64_t taken = 0;
    };

    explicit WorkerCq(const Options& options)
        : options_(options), plain_(options.extended == nullptr && !options.shared) {}
    WorkerCq(const WorkerCq&) = delete;
    WorkerCq& operator=(const WorkerCq&) = delete;

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    /// The CQ's index at its worker.
    [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
    void set_index(std::uint32_t index) noexcept { index_ = index; }

    // ---- Polling ----

    /// Polled by ibv_poll_cq, and all completions are of the worker's own requests.
    [[nodiscard]] bool plain() const noexcept { return plain_; }
    [[nodiscard]] bool polled() const noexcept { return parked_ == 0 && !failed_; }
    void park() noexcept { ++parked_; }
    void unpark() noexcept { --parked_; }
    [[nodiscard]] bool parked() const noexcept { return parked_ != 0; }
    /// From now on the CQ is not polled.
    void fail() noexcept { failed_ = true; }
    [[nodiscard]] bool failed() const noexcept { return failed_; }
    /// The error of an extended poll that failed, or 0 if none failed. The worker handles it after the completions of
    /// that poll.
    [[nodiscard]] int broken() const noexcept { return broken_; }
    void break_off(int error) noexcept { broken_ = error; }

    void count_emptied() noexcept { ++emptied_; }
    void count_taken(std::uint32_t n) noexcept { taken_ += n; }
    [[nodiscard]] Mark mark() const noexcept { return {emptied_, taken_}; }
    /// Returns true if every CQE that was in the CQ at `mark` has been taken: since then the CQ was seen empty, or as
    /// many CQEs were taken as it can hold. Also returns true if the CQ has failed.
    [[nodiscard]] bool emptied_since(const Mark& mark) const noexcept {
        return failed_ || emptied_ > mark.emptied || taken_ - mark.taken >= options_.depth;
    }

    /// The number of UD queue pairs whose receives complete here.
    [[nodiscard]] std::uint32_t datagram_qps() const noexcept { return datagram_qps_; }
    void add_datagram_qp() noexcept { ++datagram_qps_; }
    void remove_datagram_qp() noexcept { --datagram_qps_; }

    /// The session of the last completion, and most likely of the next. Null if unknown.
    [[nodiscard]] WorkerSession* served() const noexcept { return served_; }
    void serve(WorkerSession* session) noexcept { served_ = session; }
    void forget(const WorkerSession& session) noexcept { served_ = served_ == &session ? nullptr : served_; }

    // ---- Events ----

    [[nodiscard]] bool armed() const noexcept { return armed_; }
    /// Arms the CQ. Returns false if the CQ raises no events, or if the provider refused.
    [[nodiscard]] bool arm(bool solicited_only) noexcept {
        if (options_.channel == nullptr || ibv_req_notify_cq(options_.cq, solicited_only ? 1 : 0) != 0) {
            return false;
        }
        armed_ = true;
        return true;
    }
    /// Counts an event that was taken. Returns the number of events that have not been acknowledged.
    std::uint32_t take_event(bool still_armed) noexcept {
        armed_ = still_armed;
        return ++unacknowledged_;
    }
    /// Acknowledges all events that were taken. Returns true if there were any.
    bool acknowledge() noexcept {
        if (unacknowledged_ == 0) {
            return false;
        }
        options_.channel->acknowledge(*options_.cq, std::exchange(unacknowledged_, 0));
        return true;
    }
    /// From now on the CQ raises no events.
    void leave_channel() noexcept {
        options_.channel = nullptr;
        armed_ = false;
    }

private:
    Options options_;
    bool plain_;
    std::uint32_t index_ = 0;
    std::uint32_t parked_ = 0;  // how many park() calls have no unpark() yet
    bool failed_ = false;
    bool armed_ = false;
    int broken_ = 0;
    std::uint32_t datagram_qps_ = 0;
    std::uint64_t emptied_ = 0;  // polls that returned fewer completions than asked for, so the CQ was empty
    std::uint64_t taken_ = 0;    // entries polled so far
    WorkerSession* served_ = nullptr;
    std::uint32_t unacknowledged_ = 0;
};

}  // namespace pollcore
