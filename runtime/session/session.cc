// The application's side of a session: its life, and what comes out of it. What goes in is submission.cc's.
#include "pollcore/session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/bare.hpp"
#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/planted.hpp"
#include "session/in_flight_log.hpp"
#include "session/layout.hpp"
#include "session/owner_check.hpp"
#include "session/refused_completion.hpp"
#include "session/reply.hpp"

namespace pollcore {
namespace {

// Where in the last word of a completion its fields stand.
constexpr unsigned kStatus = 8 * (offsetof(Completion, status) % sizeof(Word));
constexpr unsigned kFlags = 8 * (offsetof(Completion, flags) % sizeof(Word));
constexpr unsigned kSampledAt = 8 * (offsetof(Completion, sampled_at) % sizeof(Word));

[[nodiscard]] constexpr std::uint32_t sampled_at(std::uint64_t last) noexcept { return static_cast<std::uint32_t>(last >> kSampledAt); }

/// A send that succeeded and was not followed: nothing is to be done about it but counting.
[[nodiscard]] constexpr bool is_ordinary(std::uint64_t last) noexcept {
    constexpr std::uint64_t kOther = std::uint64_t{0xff} << kStatus | std::uint64_t{kFromRecvQueue | kPooled | kNotInLine} << kFlags |
                                     std::uint64_t{0xffffffff} << kSampledAt;
    return (last & kOther) == 0;
}

#ifdef NDEBUG
constexpr bool kThreadsAlwaysChecked = false;
#else
constexpr bool kThreadsAlwaysChecked = true;
#endif

[[nodiscard]] bool checks_threads() noexcept {
    const char* asked = std::getenv("POLLCORE_CHECK_THREAD");
    return kThreadsAlwaysChecked || (asked != nullptr && std::string_view(asked) == "1");
}

}  // namespace

SessionHost::SessionHost() noexcept : process_(::getpid()) {}
bool SessionHost::is_forked() const noexcept { return ::getpid() != process_; }

Session::Session(std::shared_ptr<SessionHost> host, std::uint32_t id, std::uint32_t worker, void* block,
                 const SessionLayout& layout, const SessionWaking& waking, std::shared_ptr<InFlightLog> log, bool check_thread)
    : submissions_(at_offset<void>(block, layout.submissions()), layout.submission_slots),
      completions_(at_offset<void>(block, layout.completions()), layout.completion_ring_slots()),
      header_(session_header(block)),
      records_(at_offset<QpRecord>(block, layout.records())),
      retired_(at_offset<std::atomic<std::uint64_t>>(block, layout.retired())),
      accounts_(layout.qps_max),
      qps_mask_(layout.qps_max - 1),
      completion_slots_(layout.completion_slots),
      wide_(layout.wide),
      attention_(static_cast<std::uint8_t>((check_thread || checks_threads() ? kThreadChecked : 0) | (log != nullptr ? kLogged : 0))),
      worker_sleeps_(layout.worker_sleeps),
      stages_(at_offset<SessionStages>(block, layout.stages())),
      srq_records_(at_offset<SrqRecord>(block, layout.srq_records())),
      srq_accounts_(kSrqsMax),
      waking_(waking),
      id_(id),
      worker_(worker),
      log_(std::move(log)),
      host_(std::move(host)) {}

Session::~Session() { destroy(); }

Session::Session(Session&& other) noexcept { *this = std::move(other); }

Session& Session::operator=(Session&& other) noexcept {
    if (this == &other) {
        return *this;
    }
    destroy();
    submissions_ = std::move(other.submissions_);
    completions_ = std::move(other.completions_);
    header_ = std::exchange(other.header_, nullptr);
    records_ = other.records_;
    retired_ = other.retired_;
    accounts_ = std::move(other.accounts_);
    qps_mask_ = other.qps_mask_;
    completion_slots_ = other.completion_slots_;
    wide_ = other.wide_;
    worker_sleeps_ = other.worker_sleeps_;
    attention_ = std::exchange(other.attention_, kUnusable);
    waking_ = other.waking_;
    accepted_ = other.accepted_;
    next_sample_ = other.next_sample_;
    followed_ = other.followed_;
    last_burst_ = other.last_burst_;
    stages_ = std::exchange(other.stages_, nullptr);
    retired_seen_ = other.retired_seen_;
    awaited_ = other.awaited_;
    marked_ = other.marked_;
    past_lives_ = other.past_lives_;
    kept_ = other.kept_;
    replied_ = other.replied_;
    refused_ = other.refused_;
    pooled_taken_ = other.pooled_taken_;
    srq_records_ = other.srq_records_;
    srq_accounts_ = std::move(other.srq_accounts_);
    id_ = other.id_;
    worker_ = other.worker_;
    untaken_slots_ = other.untaken_slots_;
    untaken_requests_ = other.untaken_requests_;
    retired_told_ = other.retired_told_;
    end_told_ = other.end_told_;
    wants_slots_ = other.wants_slots_;
    log_ = std::move(other.log_);
    stock_taken_ = other.stock_taken_;
    gone_left_ = other.gone_left_;
    gone_index_ = other.gone_index_;
    host_ = std::move(other.host_);
    owner_ = 0;  // a moved session may change its thread
    return *this;
}

void Session::destroy() noexcept {
    if (header_ == nullptr) {
        return;
    }
    close();
    header_ = nullptr;
    attention_ = kUnusable;
    if (!host_->is_forked()) {
        host_->release_session(id_);
    }
    host_.reset();
}

void Session::close() noexcept {
    if ((attention_ & kUnusable) == 0) {
        attention_ |= kUnusable;
        if (!host_->is_forked()) {
            host_->close_session(id_);
        }
    }
}

void Session::check_owner() noexcept {
    thread_local const auto self = static_cast<std::uint64_t>(::gettid());
    std::uint64_t owner = 0;
    // Relaxed: it orders nothing, and finds who came first.
    if (!std::atomic_ref(owner_).compare_exchange_strong(owner, self, std::memory_order_relaxed) && owner != self) {
        std::array<char, 160> text{};
        fmt::format_to_n(text.data(), text.size() - 1, "thread {} uses session {} of thread {}: a session is used by one thread at a time", self,
                         id_, owner);
        POLLCORE_CHECK(owner == self, text.data());
    }
}

// ---- Completion ----

[[gnu::noinline]] void Session::settle_other(const Completion& completion) noexcept {
    if (completion.pooled()) {
        ++pooled_taken_;
        return;
    }
    SrqAccount& mine = srq_accounts_[completion.srq.index % kSrqsMax];
    if (mine.generation == completion.srq.generation) {
        if (logs()) {
            log_->srq(completion.srq.index % kSrqsMax).forget(completion.tag, mine.outstanding);
        }
        --mine.outstanding;
    }
}

[[gnu::always_inline]] inline void Session::settle(const Completion& completion) noexcept {
    if (completion.srq.valid() || completion.pooled()) [[unlikely]] {
        return settle_other(completion);
    }
    QpAccount& mine = accounts_[completion.qp.index & qps_mask_];
    if (mine.generation == completion.qp.generation) [[likely]] {
        std::uint32_t& outstanding = completion.from_recv_queue() ? mine.recv_outstanding : mine.send_outstanding;
        if (logs() && !completion.ok()) [[unlikely]] {
            settle_out_of_turn(completion, outstanding);
        }
        --outstanding;
    }
}

[[gnu::always_inline]] inline void Session::settle_sends(QpHandle qp, std::uint32_t ended) noexcept {
    QpAccount& mine = accounts_[qp.index & qps_mask_];
    if (mine.generation == qp.generation) [[likely]] {
        mine.send_outstanding -= ended;
    }
}

/// It may have been refused while others before it are in flight.
[[gnu::noinline]] void Session::settle_out_of_turn(const Completion& completion, std::uint32_t in_flight) noexcept {
    const std::uint16_t qp = completion.qp.index & static_cast<std::uint16_t>(qps_mask_);
    (completion.from_recv_queue() ? log_->recvs(qp) : log_->sends(qp)).forget(completion.tag, in_flight);
}

std::size_t Session::poll(std::span<Completion> out) noexcept { return take(out); }
std::size_t Session::poll(std::span<WideCompletion> out) noexcept { return take(out); }

/// Completions that came from the ring, and messages among them.
[[gnu::always_inline]] inline std::uint64_t Session::taken() const noexcept { return completions_.released() >> wide_; }

// The two slots of a wide completion are published at once, so the first tells of both.
template <class Record>
[[gnu::always_inline]] inline std::size_t Session::take_from_ring(std::span<Record> out) noexcept {
    const std::uint32_t wide = wide_;
    std::size_t n = 0;
    std::uint64_t last = 0;
    // Completions of one queue pair often stand together: they are counted once for all.
    QpHandle qp{};
    std::uint32_t ended = 0;
    // A worker publishes bursts. Where the last was one, so is this, and asking for all of its lines at once takes a fifth off the poll.
    if (last_burst_ > 2 && completions_.ready()) {
        completions_.prefetch_next(std::min<std::size_t>(last_burst_, out.size()) << wide);
    }
    while (n < out.size() && completions_.ready(n << wide, last)) {
        static_cast<Completion&>(out[n]) = completions_.slot(n << wide);
        if constexpr (std::is_same_v<Record, WideCompletion>) {
            static_cast<CompletionExtension&>(out[n]) =
                wide != 0 ? std::bit_cast<CompletionExtension>(completions_.slot((n << wide) + 1)) : CompletionExtension{};
        }
        if (!kAdmission) {  // nothing is in the books
            ++n;
            continue;
        }
        if (!is_ordinary(last)) [[unlikely]] {
            settle_sends(qp, std::exchange(ended, 0));  // what follows looks at the account
            if ((out[n].flags & kNotInLine) != 0) {
                out[n].flags &= static_cast<std::uint8_t>(~kNotInLine);
                awaited_ = 0;
                marked_ = false;
            }
            if (const std::uint32_t since = sampled_at(last); since != 0) {
                sampled(since);
            }
            settle(out[n]);
        } else if (out[n].qp == qp) [[likely]] {
            ++ended;
        } else {
            settle_sends(qp, ended);
            qp = out[n].qp;
            ended = 1;
        }
        ++n;
    }
    if (n > 0) {
        settle_sends(qp, ended);
        completions_.release(n << wide);
        last_burst_ = static_cast<std::uint32_t>(n);
    }
    return n;
}

// The line is looked at after the ring: of what stood in the ring before, nothing is behind an answer that is not there yet.
template <class Record>
[[gnu::always_inline]] inline std::size_t Session::take_awaiting(std::span<Record> out) noexcept {
    std::size_t n = 0;
    while (n < out.size()) {
        if (awaited_ == 0) {
            return n + take_from_ring(out.subspan(n));
        }
        const std::size_t ready = completions_.ready() ? completions_.peek((out.size() - n) << wide_) >> wide_ : 0;
        if (!(planted(Bug::ring_first) && ready != 0) && take_reply(out[n])) {
            if constexpr (std::is_same_v<Record, WideCompletion>) {
                static_cast<CompletionExtension&>(out[n]) = {};
            }
            ++n;
        } else if (ready != 0) {
            n += take_from_ring(out.subspan(n, ready));
        } else {
            break;
        }
    }
    return n;
}

template <class Record>
[[gnu::always_inline]] inline std::size_t Session::take(std::span<Record> out) noexcept {
    if (header_ == nullptr) [[unlikely]] {
        return 0;
    }
    check_thread();
    if (const std::size_t n = awaited_ == 0 ? take_from_ring(out) : take_awaiting(out); n > 0) {
        submissions_.prefetch();  // what comes is often answered
        return n;
    }
    past_lives_ = past_lives_ && out.empty();  // else the ring was seen to be empty
    // Acquire, with the worker's release when it lets the session go: what it took, and the last completions.
    if (const std::uint32_t closed = header_->closed.load(std::memory_order_acquire); closed != 0 && !completions_.ready() && !has_reply()) [[unlikely]] {
        return closed == SessionHeader::kDaemonGone && logs() ? complete_gone(out) : complete_untaken(out);
    }
    return 0;
}

[[gnu::noinline]] void Session::sampled(std::uint32_t since) noexcept {
    stages_->completion_ring.add(since, static_cast<std::uint32_t>(cycles_now()));
}

StageLatency Session::stage_latency() const noexcept {
    return stages_ == nullptr ? StageLatency{}
                              : StageLatency{stages_->submission_ring.read(), stages_->device.read(), stages_->completion_ring.read()};
}

/// How much is in flight, now that no worker changes it any more.
[[gnu::cold]] void Session::take_stock() noexcept {
    if (std::exchange(stock_taken_, true)) {
        return;
    }
    attention_ |= kUnusable;
    for (std::uint32_t index = 0; index <= qps_mask_; ++index) {
        const QpAccount& mine = accounts_[index];
        if (mine.generation != 0) {
            refresh_retired({static_cast<std::uint16_t>(index), mine.generation});
            gone_left_ += mine.send_outstanding + mine.recv_outstanding;
        }
    }
    for (const SrqAccount& mine : srq_accounts_) {
        gone_left_ += mine.outstanding;
    }
    // Of the two places where the worker counted what it retired, one may be a burst behind.
    retired_seen_ = accepted_ - taken() - replied_ + pooled_taken_ - gone_left_;
}

// What was in flight when the daemon died, in its ring or in its hands (I1).
template <class Record>
[[gnu::cold, gnu::noinline]] std::size_t Session::complete_gone(std::span<Record> out) noexcept {
    take_stock();
    const auto end = static_cast<std::uint32_t>(qps_mask_ + 1 + kSrqsMax);
    std::size_t n = 0;
    while (n < out.size() && gone_left_ > 0 && gone_index_ < end) {
        WorkRequest request{};
        LoggedRequest logged;
        std::uint32_t* outstanding = nullptr;
        if (gone_index_ <= qps_mask_) {
            const auto index = static_cast<std::uint16_t>(gone_index_);
            QpAccount& mine = accounts_[index];
            outstanding = mine.send_outstanding != 0 ? &mine.send_outstanding : &mine.recv_outstanding;
            if (*outstanding != 0) {
                logged = (mine.send_outstanding != 0 ? log_->sends(index) : log_->recvs(index)).oldest(*outstanding);
                request.qp = QpHandle{index, mine.generation};
            }
        } else {
            const auto index = static_cast<std::uint16_t>(gone_index_ - qps_mask_ - 1);
            SrqAccount& mine = srq_accounts_[index];
            outstanding = &mine.outstanding;
            if (*outstanding != 0) {
                logged = log_->srq(index).oldest(*outstanding);
                request.srq = SrqHandle{index, mine.generation};
            }
        }
        if (*outstanding == 0) {
            ++gone_index_;
            continue;
        }
        request.tag = logged.tag;
        request.opcode = logged.opcode;
        out[n] = Record{};
        static_cast<Completion&>(out[n++]) = refused_completion(request, Status::daemon_gone);
        --*outstanding;
        --gone_left_;
        ++untaken_requests_;
    }
    return n;
}

// Requests that were accepted while the runtime stopped on another thread: no worker will take them (I1).
template <class Record>
[[gnu::cold, gnu::noinline]] std::size_t Session::complete_untaken(std::span<Record> out) noexcept {
    attention_ |= kUnusable;
    const std::uint64_t untaken = submissions_.unreleased();
    std::size_t n = 0;
    while (n < out.size() && untaken_slots_ < untaken) {
        const WorkRequest& request = submissions_.unreleased_slot(untaken_slots_);
        untaken_slots_ += slots_of(request);
        if (request.opcode == Opcode::release) {
            continue;
        }
        ++untaken_requests_;
        out[n] = Record{};
        Completion& completion = out[n++];
        completion = refused_completion(request, Status::session_closed);
        settle(completion);
    }
    return n;
}

std::uint32_t Session::retired(QpHandle qp) noexcept {
    check_thread();
    if (header_ == nullptr || qp.index > qps_mask_) {
        return 0;
    }
    if (RetiredWord::unpack(retired_[qp.index].load(std::memory_order_acquire)).generation == qp.generation) {
        refresh_retired(qp);
    }
    const QpAccount& mine = accounts_[qp.index];
    return mine.generation == qp.generation ? mine.retired_seen : 0;
}

QpState Session::state(QpHandle qp) const noexcept {
    if (header_ == nullptr || qp.index > qps_mask_) {
        return QpState::closed;
    }
    const auto word = QpStatusWord::unpack(records_[qp.index].status.load(std::memory_order_acquire));
    return word.generation == qp.generation ? word.state : QpState::closed;
}

std::uint32_t Session::message_max(QpHandle qp) const noexcept {
    return state(qp) == QpState::closed
               ? 0
               : MessageLimitsWord::unpack(records_[qp.index].longest.load(std::memory_order_relaxed)).message_max;
}

std::uint32_t Session::rendezvous_max(QpHandle qp) const noexcept {
    return state(qp) == QpState::closed
               ? 0
               : MessageLimitsWord::unpack(records_[qp.index].longest.load(std::memory_order_relaxed)).rendezvous_max;
}

Status Session::cause(QpHandle qp) const noexcept {
    if (header_ == nullptr || qp.index > qps_mask_) {
        return Status::success;
    }
    const auto word = QpStatusWord::unpack(records_[qp.index].status.load(std::memory_order_acquire));
    return word.generation == qp.generation ? word.cause : Status::qp_closed;
}

SessionFigures Session::figures() noexcept {
    if (header_ != nullptr && !stock_taken_) {
        retired_seen_ = header_->retired.load(std::memory_order_acquire);
    }
    return {.accepted = accepted_,
            .completed = taken() + replied_ + untaken_requests_ - pooled_taken_,
            .retired = retired_seen_,
            .refused = refused_,
            .throttled = header_ == nullptr ? 0 : header_->throttled.load(std::memory_order_relaxed)};
}

}  // namespace pollcore
