// The implementation of pollcore::Session, on the application's thread.
//
//   admission.hpp  decides whether a request is taken (I3); admission.cc: its rare cases
//   submission.cc  writes requests
//   release.cc     gives buffers back
//   session.cc     opens and closes, takes completions, and returns counts and states
//   settling.cc    counts completed requests: the rare cases
//   waiting.cc     wait(), arm()
//   send_pool.cc   gives the buffers of send pools back
//   aftermath.cc   makes completions after the session's or the daemon's end
//
// Thread safety: only the session's thread may make the calls; any thread may call stage_latency() and poke().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/planted.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/session.hpp"
#include "session/accounts.hpp"
#include "session/completion_inbox.hpp"
#include "session/in_flight_log.hpp"
#include "session/layout.hpp"
#include "session/reply_delay.hpp"
#include "session/session_host.hpp"

namespace pollcore {

class SendPoolCore;

class alignas(kCacheLine) SessionCore {
public:
    struct Options {
        std::uint32_t id = 0;
        std::string name{};
        std::uint32_t worker = 0;
        std::string worker_name{};
        SessionWaking waking{};
        /// Set if the worker is in another process, which may die at any time. Null if the worker always ends the
        /// session in order.
        std::shared_ptr<InFlightLog> log{};
        bool check_thread = false;    ///< SessionOptions::check_thread
        bool flush_in_error = false;  ///< SessionOptions::flush_in_error
    };
    /// Joins a formatted session block.
    SessionCore(std::shared_ptr<SessionHost> host, void* block, const SessionLayout& layout, Options options);
    ~SessionCore();
    SessionCore(const SessionCore&) = delete;
    SessionCore& operator=(const SessionCore&) = delete;

    // The calls of Session.
    [[nodiscard]] Refusal try_submit(const WorkRequest& request) noexcept;
    Submitted try_submit(std::span<const WorkRequest> requests) noexcept;
    [[nodiscard]] Refusal try_submit(const WorkRequest& request, std::span<const Sge> sges) noexcept;
    [[nodiscard]] Refusal try_submit_inline(const WorkRequest& request, std::span<const std::byte> payload) noexcept;
    [[nodiscard]] Submitted release(std::span<const Completion> completions) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t poll(std::span<Record> out) noexcept;
    [[nodiscard]] bool wait(std::chrono::nanoseconds timeout) noexcept;
    // The parts of wait(), for a caller that makes the first looks itself. The caller calls begin_to_look() before its
    // first look, looked() after each of its looks, and then look_on(), which makes all later looks.
    [[gnu::always_inline]] void begin_to_look() noexcept {
        if (inbox_.awaits_reply()) {
            reply_delay_.begin();
        }
    }
    [[gnu::always_inline]] void looked(bool found) noexcept { reply_delay_.looked(found); }
    [[nodiscard]] bool look_on(std::chrono::nanoseconds timeout) noexcept;
    [[nodiscard]] bool arm() noexcept;
    void poke() noexcept;
    [[nodiscard]] int event_fd() const noexcept { return waking_.application_fd; }
    [[nodiscard]] std::uint32_t retired(QpHandle qp) noexcept;
    /// The status of a queue pair. If the session has no share of the queue pair, this is the status of a closed one.
    [[nodiscard]] QpStatusWord status(QpHandle qp) const noexcept;
    [[nodiscard]] MessageLimitsWord message_limits(QpHandle qp) const noexcept;
    [[nodiscard]] SessionFigures figures() noexcept;
    [[nodiscard]] StageLatency stage_latency() const noexcept;
    [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
    [[nodiscard]] std::string_view name() const noexcept { return name_; }
    [[nodiscard]] std::uint32_t worker() const noexcept { return worker_; }
    [[nodiscard]] std::string_view worker_name() const noexcept { return worker_name_; }
    void close() noexcept;

    /// Each call that changes the session begins with this check. Only close() does not, because any thread may end the
    /// session. `user` is the thread that uses the session, or 0.
    [[gnu::always_inline]] void check_thread(std::uint64_t& user) const noexcept {
        if ((attention_ & kThreadChecked) != 0) [[unlikely]] {
            check_user(user);
        }
    }

    /// Whether poll() is not enough, and poll_attentively() must be called.
    [[nodiscard]] bool needs_attention() const noexcept { return (attention_ & (kThreadChecked | kSendPools)) != 0; }
    /// poll(), with check_thread() before it, and with the completions of send pools taken back after it.
    template <class Record>
    [[nodiscard]] std::size_t poll_attentively(std::span<Record> out, std::uint64_t& user) noexcept;
    /// try_submit(), for a send pool.
    [[nodiscard]] Refusal submit_of_pool(const WorkRequest& request) noexcept;
    /// From now on the completions of this pool's requests go back to the pool. Throws std::bad_alloc.
    void add_send_pool(std::shared_ptr<SendPoolCore> pool);
    void drop_send_pools() noexcept;
    /// Whether the session was opened there.
    [[nodiscard]] bool is_of(const SessionHost* host) const noexcept { return host_.get() == host; }

private:
    // Bits of attention_.
    static constexpr std::uint8_t kUnusable = 1;       // the session is closed and takes no requests
    static constexpr std::uint8_t kThreadChecked = 2;  // SessionOptions::check_thread
    static constexpr std::uint8_t kLogged = 4;         // the session has a log_
    static constexpr std::uint8_t kSendPools = 8;      // the session has send_pools_
    static constexpr std::uint8_t kFlushInError = 16;  // SessionOptions::flush_in_error

    // admission.hpp
    [[nodiscard]] bool completion_room() noexcept;
    [[nodiscard]] std::size_t reserve_slots(std::size_t wanted) noexcept;
    [[nodiscard]] Refusal admit_slots(std::uint32_t slots, std::size_t ahead) noexcept;
    [[nodiscard]] std::size_t ordinary_room(std::size_t wanted) noexcept;
    [[nodiscard]] QpAccount* known(RequestHead head, std::uint32_t inline_length) noexcept;
    [[nodiscard]] bool admits_at_once(RequestHead head, std::uint32_t inline_length, std::uint64_t bytes) noexcept;
    [[nodiscard]] Refusal admit(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t inline_length,
                                std::uint64_t bytes, std::uint32_t slots, std::size_t ahead = 0,
                                unsigned refused_flags = kInline) noexcept;
    [[nodiscard]] Refusal admit_own(const WorkRequest& request, std::size_t ahead = 0) noexcept;
    [[nodiscard]] Refusal admit_inline(const WorkRequest& request, std::uint32_t length, std::uint32_t slots,
                                       std::size_t ahead = 0) noexcept;
    void count_refused(Refusal cause) noexcept;

    // admission.cc
    void refresh_room() noexcept;
    [[nodiscard]] bool begin_epoch(QpAccount& account, std::uint16_t epoch) noexcept;
    [[gnu::cold]] Refusal refuse_unknown(QpHandle qp) const noexcept;
    [[nodiscard]] Refusal admit_without_sge(const WorkRequest& request, std::size_t ahead) noexcept;
    [[nodiscard]] Refusal admit_shared(const WorkRequest& request, std::uint32_t num_sge, std::uint32_t slots,
                                       std::size_t ahead) noexcept;

    // submission.cc
    [[nodiscard]] std::size_t write_ordinary(std::span<const WorkRequest> requests, std::size_t ahead) noexcept;
    [[nodiscard]] std::size_t write_short(std::span<const WorkRequest> requests, std::size_t ahead) noexcept;
    struct Written {
        std::size_t requests = 0;
        std::size_t slots = 0;
        Refusal refusal = Refusal::none;  // of the next request
    };
    [[nodiscard]] Written write_mixed(std::span<const WorkRequest> requests, std::size_t ahead) noexcept;
    [[nodiscard]] Written write_inline(const WorkRequest& request, std::size_t ahead) noexcept;
    void write_payload(const WorkRequest& request, std::size_t slot, std::uint32_t slots) noexcept;
    [[nodiscard]] Refusal refused(const WorkRequest& request, Refusal refusal) noexcept;
    [[nodiscard]] Submitted submit_others(std::span<const WorkRequest> requests, std::size_t written) noexcept;
    void publish(std::span<const WorkRequest> requests, std::size_t slots) noexcept;
    void fill_inline(WorkRequest& slot, const WorkRequest& request, std::span<const std::byte> payload) noexcept;
    void write_continuations(std::span<const std::byte> payload, std::size_t first, std::uint32_t slots) noexcept;
    void count_accepted(const WorkRequest& request) noexcept;
    void note(const WorkRequest& request) noexcept;
    void note_sends(std::span<const WorkRequest> requests) noexcept;
    void count_written(std::span<const WorkRequest> requests) noexcept;
    [[nodiscard]] std::uint64_t expect_reply(const WorkRequest& request) noexcept;
    [[nodiscard]] std::uint64_t sum(std::span<const Sge> sges) noexcept;
    void sample(WorkRequest& slot, Opcode opcode) noexcept;
    void follow(WorkRequest& slot, Opcode opcode) noexcept;
    void follow_one_of(std::span<const WorkRequest> requests) noexcept;
    void wake_worker() noexcept;

    /// To be called after each commit.
    [[gnu::always_inline]] void submitted() noexcept;

    // settling.cc
    struct Settle;
    [[gnu::always_inline]] void settle(const Completion& completion) noexcept;
    void settle_other(const Completion& completion) noexcept;
    void settle_out_of_turn(const Completion& completion, std::uint32_t in_flight) noexcept;

    // send_pool.cc
    template <class Record>
    [[nodiscard]] std::size_t take_back(std::span<Record> taken) noexcept;
    void leave_send_pools() noexcept;

    // session.cc
    void check_user(std::uint64_t& user) const noexcept;

    // waiting.cc
    [[nodiscard]] bool need_not_wait() const noexcept;
    [[nodiscard]] bool tell_news() noexcept;
    [[nodiscard]] bool expect_news() noexcept;
    void sleep(std::chrono::nanoseconds most) noexcept;

    // aftermath.cc
    template <class Record>
    [[nodiscard]] std::size_t complete_rest(std::uint32_t closed, std::span<Record> out) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t complete_untaken(std::span<Record> out) noexcept;
    template <class Record>
    [[nodiscard]] std::size_t complete_gone(std::span<Record> out) noexcept;
    void take_stock() noexcept;
    [[nodiscard]] bool left_to_complete() noexcept;

    [[nodiscard]] bool logs() const noexcept { return (attention_ & kLogged) != 0; }

    // Read on every call.
    RingProducer<WorkRequest> submissions_;
    CompletionInbox inbox_;
    Accounts accounts_;
    SessionHeader& header_;
    std::uint8_t attention_ = 0;     // the bits above
    bool worker_sleeps_ = false;     // the worker may sleep
    bool summing_ = false;           // the request that was just admitted needs the checksum of its payload
    bool wants_slots_ = false;       // a submission found the ring full, and wait() or arm() has not reported new room
    std::uint64_t next_sample_ = 0;  // the next request is followed when this many requests were accepted
    std::uint32_t followed_ = 0;     // requests followed so far
    // Used seldom.
    ReplyDelay reply_delay_;
    SessionStages& stages_;
    SessionRefusals& refusals_;
    SessionWaking waking_;
    std::uint32_t id_;
    std::uint32_t worker_;
    std::uint64_t retired_told_ = 0;  // retired requests that wait() or arm() has reported
    bool end_told_ = false;           // arm() has reported the session's end
    std::shared_ptr<InFlightLog> log_;
    std::uint64_t untaken_slots_ = 0;     // slots of untaken requests that complete_untaken() has completed
    std::uint64_t untaken_requests_ = 0;  // requests that were completed here, and not by a worker
    bool stock_taken_ = false;            // the daemon is gone, and take_stock() has counted the requests in flight
    std::uint32_t gone_left_ = 0;         // requests that still have to complete with daemon_gone
    std::uint32_t gone_index_ = 0;        // complete_gone(): queues below this index have no requests left
    std::shared_ptr<SessionHost> host_;
    const std::string name_;
    const std::string worker_name_;
    std::vector<std::shared_ptr<SendPoolCore>> send_pools_;
    UniqueFd poke_;  // an eventfd that wakes a thread in sleep(); invalid if the session never sleeps
    alignas(kCacheLine) std::atomic<bool> poked_{false};  // written by any thread
};

inline void SessionCore::settle(const Completion& completion) noexcept {
    if (completion.srq.valid() || completion.pooled()) [[unlikely]] {
        return settle_other(completion);
    }
    QpAccount& mine = accounts_.of(completion.qp);
    if (mine.generation() != completion.qp.generation) [[unlikely]] {
        return;
    }
    if (logs() && !completion.ok()) [[unlikely]] {
        settle_out_of_turn(completion, completion.from_recv_queue() ? mine.recvs() : mine.sends());
    }
    if (completion.from_recv_queue()) {
        mine.end_recv();
    } else {
        mine.end_sends(1);
    }
}

// If the worker never sleeps, this costs only one test.
inline void SessionCore::submitted() noexcept {
    if (worker_sleeps_ && !planted(Bug::late_word)) [[unlikely]] {
        wake_worker();
    }
}

}  // namespace pollcore
