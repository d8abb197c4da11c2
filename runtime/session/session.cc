// Opens and closes a session, takes its completions, and returns its counts and states.
#include "pollcore/session.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "base/called.hpp"
#include "base/check.hpp"
#include "base/event_fd.hpp"
#include "session/session_core.hpp"

namespace pollcore {
namespace {

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
bool SessionHost::is_forked() const noexcept {
    return ::getpid() != process_;
}

// ---- Opening and closing ----

SessionCore::SessionCore(std::shared_ptr<SessionHost> host, void* block, const SessionLayout& layout, Options options)
    : submissions_(at_offset<void>(block, layout.submissions()), layout.submission_slots),
      inbox_(block, layout, submissions_),
      accounts_(block, layout),
      header_(*session_header(block)),
      attention_(static_cast<std::uint8_t>((options.check_thread || checks_threads() ? kThreadChecked : 0) |
                                           (options.log != nullptr ? kLogged : 0) |
                                           (options.flush_in_error ? kFlushInError : 0))),
      worker_sleeps_(layout.worker_sleeps),
      stages_(*at_offset<SessionStages>(block, layout.stages())),
      refusals_(*at_offset<SessionRefusals>(block, layout.refusals())),
      waking_(options.waking),
      id_(options.id),
      worker_(options.worker),
      log_(std::move(options.log)),
      host_(std::move(host)),
      name_(std::move(options.name)),
      worker_name_(std::move(options.worker_name)),
      poke_(waking_.application_fd >= 0 ? make_event_fd("a session that waits") : UniqueFd()) {}

SessionCore::~SessionCore() {
    leave_send_pools();
    close();
    if (!host_->is_forked()) {
        host_->release_session(id_);
    }
}

void SessionCore::close() noexcept {
    if ((attention_ & kUnusable) == 0) {
        attention_ |= kUnusable;
        if (!host_->is_forked()) {
            host_->close_session(id_);
        }
    }
}

[[gnu::cold]] void SessionCore::check_user(std::uint64_t& user) const noexcept {
    thread_local const auto self = static_cast<std::uint64_t>(::gettid());
    std::uint64_t before = 0;
    // Relaxed: this orders no other accesses, and only finds the first thread.
    if (!std::atomic_ref(user).compare_exchange_strong(before, self, std::memory_order_relaxed) && before != self) {
        std::array<char, 300> text{};
        fmt::format_to_n(text.data(), text.size() - 1,
                         "thread {} uses session {} of thread {}: a session is used by one thread at a time", self,
                         Called{id_, name_}, before);
        POLLCORE_CHECK(before == self, text.data());
    }
}

// ---- Completions ----

/// For CompletionInbox::take.
struct SessionCore::Settle {
    SessionCore& core;
    [[gnu::always_inline]] void sends(QpHandle qp, std::uint32_t n) const noexcept { core.accounts_.end_sends(qp, n); }
    [[gnu::always_inline]] void ends(const Completion& completion) const noexcept { core.settle(completion); }
};

template <class Record>
[[gnu::always_inline]] inline std::size_t SessionCore::poll(std::span<Record> out) noexcept {
    if (const std::size_t n = inbox_.take(out, Settle{*this}); n > 0) {
        submissions_.prefetch();  // a completion is often answered with a request (D3)
        return n;
    }
    if (accounts_.past_lives() && !out.empty()) [[unlikely]] {
        accounts_.forget_past_lives();
    }
    // Acquire, pairs with the worker's release when the worker detaches the session: the last completions are visible,
    // and also which requests the worker has taken.
    if (const std::uint32_t closed = header_.closed.load(std::memory_order_acquire); closed != 0 && !inbox_.ready())
        [[unlikely]] {
        return complete_rest(closed, out);
    }
    return 0;
}

template <class Record>
[[gnu::noinline]] std::size_t SessionCore::poll_attentively(std::span<Record> out, std::uint64_t& user) noexcept {
    check_thread(user);
    for (;;) {
        const std::size_t n = poll(out);
        if (n == 0 || (attention_ & kSendPools) == 0) {
            return n;
        }
        // Looks on if the program is to see none of these, because 0 means that no completion is left.
        if (const std::size_t kept = take_back(out.first(n)); kept != 0) {
            return kept;
        }
    }
}

// ---- Counts and states ----

std::uint32_t SessionCore::retired(QpHandle qp) noexcept {
    if (qp.index > accounts_.qps_mask()) {
        return 0;
    }
    if (accounts_.retired_word(qp.index).generation == qp.generation) {
        accounts_.refresh_retired(qp);
    }
    const QpAccount& mine = accounts_.at(qp.index);
    return mine.generation() == qp.generation ? mine.retired() : 0;
}

QpStatusWord SessionCore::status(QpHandle qp) const noexcept {
    if (qp.valid() && qp.index <= accounts_.qps_mask()) {
        if (const auto word = QpStatusWord::unpack(accounts_.status(qp.index)); word.generation == qp.generation) {
            return word;
        }
    }
    return {.state = QpState::closed, .cause = Status::qp_closed};
}

MessageLimitsWord SessionCore::message_limits(QpHandle qp) const noexcept {
    return status(qp).state == QpState::closed
               ? MessageLimitsWord{}
               : MessageLimitsWord::unpack(accounts_.record(qp.index).longest.load(std::memory_order_relaxed));
}

SessionFigures SessionCore::figures() noexcept {
    if (!stock_taken_) {
        accounts_.refresh();
    }
    std::uint64_t refused = 0;
    for (const Counter& count : refusals_.by_cause) {
        refused += count.value();
    }
    return {.accepted = accounts_.accepted(),
            .completed = inbox_.taken() + untaken_requests_ - accounts_.pooled_taken(),
            .retired = accounts_.retired(),
            .refused = refused,
            .throttled = header_.throttled.load(std::memory_order_relaxed)};
}

StageLatency SessionCore::stage_latency() const noexcept {
    return {stages_.submission_ring.read(), stages_.device.read(), stages_.completion_ring.read()};
}

// ---- The calls of Session ----

Session::Session() noexcept = default;
Session::Session(std::unique_ptr<SessionCore> core) noexcept : core_(std::move(core)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

std::size_t Session::poll(std::span<Completion> out) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return 0;
    }
    return core_->needs_attention() ? core_->poll_attentively(out, user_.thread) : core_->poll(out);
}

std::size_t Session::poll(std::span<WideCompletion> out) noexcept {
    if (core_ == nullptr) [[unlikely]] {
        return 0;
    }
    return core_->needs_attention() ? core_->poll_attentively(out, user_.thread) : core_->poll(out);
}

std::uint32_t Session::retired(QpHandle qp) noexcept {
    if (core_ == nullptr) {
        return 0;
    }
    core_->check_thread(user_.thread);
    return core_->retired(qp);
}

QpState Session::state(QpHandle qp) const noexcept {
    return core_ != nullptr ? core_->status(qp).state : QpState::closed;
}
Status Session::cause(QpHandle qp) const noexcept {
    return core_ != nullptr ? core_->status(qp).cause : Status::qp_closed;
}
std::uint32_t Session::message_max(QpHandle qp) const noexcept {
    return core_ != nullptr ? core_->message_limits(qp).message_max : 0;
}
std::uint32_t Session::rendezvous_max(QpHandle qp) const noexcept {
    return core_ != nullptr ? core_->message_limits(qp).rendezvous_max : 0;
}
StageLatency Session::stage_latency() const noexcept {
    return core_ != nullptr ? core_->stage_latency() : StageLatency{};
}
int Session::event_fd() const noexcept {
    return core_ != nullptr ? core_->event_fd() : -1;
}
std::uint32_t Session::id() const noexcept {
    return core_ != nullptr ? core_->id() : 0;
}
std::string_view Session::name() const noexcept {
    return core_ != nullptr ? core_->name() : std::string_view();
}
std::uint32_t Session::worker() const noexcept {
    return core_ != nullptr ? core_->worker() : 0;
}
std::string_view Session::worker_name() const noexcept {
    return core_ != nullptr ? core_->worker_name() : std::string_view();
}

SessionFigures Session::figures() noexcept {
    if (core_ == nullptr) {
        return {};
    }
    core_->check_thread(user_.thread);
    return core_->figures();
}

void Session::hand_over() noexcept {
    user_.thread = 0;
}

void Session::close() noexcept {
    if (core_ != nullptr) {
        core_->close();
    }
}

}  // namespace pollcore
