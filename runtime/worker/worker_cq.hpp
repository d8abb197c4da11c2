// The worker's end of a completion queue: how far it has been emptied, and whether it is polled and armed.
//
// Thread safety: made by the control thread, the worker's from add_cq until the answer to remove_cq.
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
        ibv_cq_ex* extended = nullptr;         ///< `cq`, if polled by ibv_start_poll (D36); null: by ibv_poll_cq
        bool next_poll = true;                 ///< DeviceLimits::next_poll (D35)
        bool device_time = false;              ///< made with CqOptions::device_time, hence extended (D37)
        std::uint32_t id = 0;                  ///< the control thread's name for it; an index is used again
        std::uint32_t depth = 0;               ///< entries it can hold
        CompletionChannel* channel = nullptr;  ///< null: it raises no events
    };
    /// How much came out of it.
    struct Mark {
        std::uint64_t emptied = 0;
        std::uint64_t taken = 0;
    };

    explicit WorkerCq(const Options& options) : options_(options) {}
    WorkerCq(const WorkerCq&) = delete;
    WorkerCq& operator=(const WorkerCq&) = delete;

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    /// At its worker.
    [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
    void set_index(std::uint32_t index) noexcept { index_ = index; }

    // ---- Polling ----

    [[nodiscard]] bool polled() const noexcept { return parked_ == 0 && !failed_; }
    void park() noexcept { ++parked_; }
    void unpark() noexcept { --parked_; }
    [[nodiscard]] bool parked() const noexcept { return parked_ != 0; }
    /// It is not polled any more.
    void fail() noexcept { failed_ = true; }
    [[nodiscard]] bool failed() const noexcept { return failed_; }
    /// The error with which an extended poll failed. It is handled after the completions of that poll; 0: none has
    /// failed.
    [[nodiscard]] int broken() const noexcept { return broken_; }
    void break_off(int error) noexcept { broken_ = error; }

    void count_emptied() noexcept { ++emptied_; }
    void count_taken(std::uint32_t n) noexcept { taken_ += n; }
    [[nodiscard]] Mark mark() const noexcept { return {emptied_, taken_}; }
    /// Everything that stood in it at the mark has been taken: it was seen empty, or, while others keep it busy, as
    /// much came out as it can hold.
    [[nodiscard]] bool emptied_since(const Mark& mark) const noexcept {
        return failed_ || emptied_ > mark.emptied || taken_ - mark.taken >= options_.depth;
    }

    /// UD queue pairs whose receives complete here.
    [[nodiscard]] std::uint32_t datagram_qps() const noexcept { return datagram_qps_; }
    void add_datagram_qp() noexcept { ++datagram_qps_; }
    void remove_datagram_qp() noexcept { --datagram_qps_; }

    /// The session of the last completion, likely also of the next; null: not known.
    [[nodiscard]] WorkerSession* served() const noexcept { return served_; }
    void serve(WorkerSession* session) noexcept { served_ = session; }
    void forget(const WorkerSession& session) noexcept { served_ = served_ == &session ? nullptr : served_; }

    // ---- Events ----

    [[nodiscard]] bool armed() const noexcept { return armed_; }
    /// False: it raises no events, or the provider refused.
    [[nodiscard]] bool arm(bool solicited_only) noexcept {
        if (options_.channel == nullptr || ibv_req_notify_cq(options_.cq, solicited_only ? 1 : 0) != 0) {
            return false;
        }
        armed_ = true;
        return true;
    }
    /// An event was taken. Returns how many have not been acknowledged.
    std::uint32_t take_event(bool still_armed) noexcept {
        armed_ = still_armed;
        return ++unacknowledged_;
    }
    /// True: there was something to acknowledge.
    bool acknowledge() noexcept {
        if (unacknowledged_ == 0) {
            return false;
        }
        options_.channel->acknowledge(*options_.cq, std::exchange(unacknowledged_, 0));
        return true;
    }
    /// It raises no more events.
    void leave_channel() noexcept {
        options_.channel = nullptr;
        armed_ = false;
    }

private:
    Options options_;
    std::uint32_t index_ = 0;
    std::uint32_t parked_ = 0;  // nesting
    bool failed_ = false;
    bool armed_ = false;
    int broken_ = 0;
    std::uint32_t datagram_qps_ = 0;
    std::uint64_t emptied_ = 0;  // how often a poll came back with less than it could take
    std::uint64_t taken_ = 0;    // entries polled so far
    WorkerSession* served_ = nullptr;
    std::uint32_t unacknowledged_ = 0;
};

}  // namespace pollcore
