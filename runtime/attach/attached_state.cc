// The attached process's side: requests and their answers, and the end of the daemon. The calls that send the requests
// are in attached_calls.cc.
#include "attach/attached_state.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "attach/ask.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "session/in_flight_log.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kTryEvery = 5ms;

bool may_come(int error) noexcept {
    return error == ENOENT || error == ECONNREFUSED || error == EAGAIN;
}

UniqueFd connect_within(const AttachOptions& options) {
    const auto deadline = Clock::now() + options.timeout;
    for (;;) {
        try {
            return wire::connect_to(options.path);
        } catch (const Error& error) {
            if (!may_come(error.code().value()) || Clock::now() >= deadline) {
                throw;
            }
        }
        std::this_thread::sleep_for(kTryEvery);
    }
}

}  // namespace

AttachedState::AttachedState(const AttachOptions& options)
    : answer_within_(options.answer_within), wake_(make_event_fd("an attachment's end")) {
    if (options.own_memory) {
        reader_pause_.emplace(wake_.get());
    }
    begin(options);
}

AttachedState::~AttachedState() {
    end_reader();
}

void AttachedState::begin(const AttachOptions& options) {
    socket_ = connect_within(options);
    reader_ = start_quiet_thread([this] { read_answers(); });
    try {
        std::vector<UniqueFd> descriptors;
        attached_ = ask(wire::Attach{.name = NameText(options.name)}, {}, &descriptors);
        if (descriptors.size() != 2) {
            throw Error(EPROTO, "the daemon at " + options.path + " does not say who it is");
        }
        {
            const std::lock_guard lock(mutex_);
            daemon_ = std::move(descriptors[0]);
            welcomed_ = true;
        }
        signal_event(wake_.get());  // the reader polls daemon_ from now on
        pool_counters_ = map_published(descriptors[1], attached_.pool_counters * sizeof(ReceivePoolCounters));
        for (std::uint32_t i = 0; i < attached_.workers; ++i) {
            worker_counters_.push_back(std::make_unique<WorkerCounters>());
        }
        ask_for_events();
        if (options.own_memory) {
            share_contexts();
        }
    } catch (...) {
        end_reader();
        throw;
    }
}

// Comes first, because the queue pairs of this process have to be in the same context as its memory.
void AttachedState::share_contexts() {
    for (std::uint32_t i = 0; i < attached_.devices; ++i) {
        const std::string device = ask(wire::AskDevice{.index = i}).name.string();
        only_device_ = attached_.devices == 1 ? device : "";
        std::vector<UniqueFd> descriptors;
        const wire::ContextShared shared = ask(wire::ShareContext{.device = NameText(device)}, {}, &descriptors);
        if (shared.has_kernel == 0) {
            continue;
        }
        if (descriptors.size() != 1) {
            throw Error(EPROTO, "the daemon does not give the descriptor of a context");
        }
        own_memory_.add_context(device, std::move(descriptors.front()), shared.driver_id, shared.pd,
                                shared.verbs_handle);
    }
}

const std::string& AttachedState::full_name(const std::string& device) const noexcept {
    return device.empty() ? only_device_ : device;
}

void AttachedState::end_reader() noexcept {
    ending_.store(true, std::memory_order_release);
    signal_event(wake_.get());
    if (reader_.joinable()) {
        reader_.join();
    }
}

bool AttachedState::stop() {
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(stopped_, true)) {
            return true;
        }
    }
    const auto over = [this] {
        lose();
        events_.close();
    };
    bool whole = true;
    try {
        whole = ask(wire::Detach{}).whole != 0;
    } catch (...) {
        if (!lost()) {
            over();  // wakes all threads that wait for an answer
            throw;
        }
    }
    over();
    return whole;
}

// ---- Questions and answers ----

std::uint64_t AttachedState::next_id() {
    const std::lock_guard lock(mutex_);
    return next_id_++;
}

wire::Packet AttachedState::exchange(std::uint64_t id, std::span<const std::byte> packet,
                                     std::span<const int> descriptors, std::chrono::milliseconds within) {
    const auto deadline = Clock::now() + within;
    const auto ended = [this] {  // called with mutex_ held
        if (stopped_) {
            return Error(ESHUTDOWN, "the attachment is stopped");
        }
        return Error(ECONNRESET, why_ending_.empty()
                                     ? "the daemon is gone, or has ended this attachment; its log says why"
                                     : "the daemon has ended this attachment: " + why_ending_);
    };
    Question question;
    {
        const std::lock_guard lock(mutex_);
        if (std::optional<wire::Packet> early = std::exchange(early_, std::nullopt);
            early && early->header().id == id) {
            return std::move(*early);
        }
        if (lost()) {
            throw ended();
        }
        questions_.emplace(id, &question);
    }
    int error = 0;
    while ((error = wire::send_packet(socket_.get(), packet, descriptors)) == EAGAIN) {
        pollfd writable{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        if (left <= 0) {
            error = ETIMEDOUT;
            break;
        }
        (void)::poll(&writable, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    }
    std::unique_lock lock(mutex_);
    if (error == 0 || error == EPIPE) {  // EPIPE: the reader thread sees the end, and calls lose()
        if (!changed_.wait_until(lock, deadline, [&] { return question.answered || lost(); })) {
            error = ETIMEDOUT;
        }
    }
    questions_.erase(id);
    if (!question.answered) {
        throw error == 0 || error == EPIPE ? ended()
        : error == ETIMEDOUT               ? Error(error, "the daemon does not answer (AttachOptions::answer_within)")
                                           : Error(error, "asking the daemon");
    }
    return std::move(question.answer);
}

void AttachedState::read_answers() noexcept {
    pthread_setname_np(pthread_self(), "pollcore-attach");
    run_anywhere();

    bool listening = true;
    while (!ending_.load(std::memory_order_acquire)) {
        std::array<pollfd, 3> fds{};
        fds[0] = {.fd = wake_.get(), .events = POLLIN, .revents = 0};
        fds[1] = {.fd = listening ? socket_.get() : -1, .events = POLLIN, .revents = 0};
        {
            const std::lock_guard lock(mutex_);
            fds[1].events |= events_unasked_ ? POLLOUT : 0;
            fds[2] = {.fd = buried_ ? -1 : daemon_.get(), .events = POLLIN, .revents = 0};
        }
        if (::poll(fds.data(), fds.size(), -1) < 0) {
            continue;  // interrupted by a signal
        }
        if (fds[0].revents != 0) {
            (void)drain_event(wake_.get());
            if (reader_pause_) {
                reader_pause_->take_if_asked();
            }
        }
        // First takes all messages that the daemon has sent. After that, bury() handles the daemon's end.
        while (listening) {
            try {
                wire::Packet packet;
                const int error = wire::recv_packet(socket_.get(), packet);
                if (error == EAGAIN) {
                    break;
                }
                if (error != 0) {
                    listening = false;
                    lose();
                    break;
                }
                take(std::move(packet));
            } catch (const std::exception& error) {
                log_error("an attachment's answers: {}", error.what());
                listening = false;
                lose();
            }
        }
        if ((fds[1].revents & POLLOUT) != 0) {
            ask_for_events();
        }
        if (fds[2].revents != 0) {
            bury();
        }
    }
    if (reader_pause_) {
        reader_pause_->end();
    }
}

void AttachedState::take(wire::Packet&& packet) {
    const wire::Header header = packet.header();
    if (header.kind == wire::Kind::event) {
        wire::Request<wire::EventTold> told;
        if (packet.read(told)) {
            if (static_cast<EventType>(told.body.type) == EventType::stopping) {
                const std::lock_guard lock(mutex_);
                why_ending_ = told.body.text.string();
            }
            events_.push({.type = static_cast<EventType>(told.body.type),
                          .device = told.body.device.string(),
                          .worker = told.body.worker.string(),
                          .qp = told.body.qp,
                          .srq = told.body.srq,
                          .port = static_cast<std::uint8_t>(told.body.port),
                          .lost_after = told.body.lost_after,
                          .text = told.body.text.string()});
        }
        return;
    }
    if (header.kind == wire::Kind::next_events) {
        return take_events(packet);
    }
    const std::lock_guard lock(mutex_);
    if (const auto found = questions_.find(header.id); found != questions_.end()) {
        found->second->answer = std::move(packet);
        found->second->answered = true;
        changed_.notify_all();
    } else if (!welcomed_) {
        early_ = std::move(packet);
    }
}

void AttachedState::take_events(const wire::Packet& packet) {
    wire::Answer<wire::ConnectionEvents> answer;
    if (!packet.read(answer)) {
        log_error("the daemon's events of connections do not fit: daemon and library must have one version");
        return;
    }
    if (answer.outcome.error != 0) {  // for example, the daemon has no memory at the moment
        // Without the pause, both sides would exchange messages as fast as they can until it has.
        log_warning("the daemon gives no events of connections, and is asked again: {}", answer.outcome.text.string());
        std::this_thread::sleep_for(kTryEvery);
    }
    const wire::ConnectionEvents& told = answer.body;
    for (std::size_t i = 0; i < std::min<std::size_t>(told.count, told.events.size()); ++i) {
        const wire::ConnectionEvent& one = told.events[i];
        Event event{.type = static_cast<EventType>(one.type), .qp = one.qp};
        event.listener = {.number = one.listener, .device = one.listener_device};
        event.error = one.error;
        event.renewed = one.renewed;
        event.drained = one.drained != 0;
        if (i == told.detailed) {
            event.text = told.text.string();
            event.private_data = wire::bytes_of(told.private_data);
        }
        events_.keep(std::move(event));
    }
    ask_for_events();
}

// Does not wait for room in the socket. The reader thread tries again when there is room.
void AttachedState::ask_for_events() noexcept {
    const wire::Request<wire::NextEvents> request{{.kind = wire::Kind::next_events, .id = next_id()}, {}};
    const int error = wire::send_packet(socket_.get(), std::as_bytes(std::span(&request, 1)), {});
    const std::lock_guard lock(mutex_);
    events_unasked_ = error != 0 && error != EPIPE;
}

/// Call this when no more answers arrive. Wakes all threads that wait for an answer.
void AttachedState::lose() noexcept {
    own_memory_.end();  // first, because a program that learns of the loss may use its memory again
    {
        const std::lock_guard lock(mutex_);
        lost_.store(true, std::memory_order_release);
        changed_.notify_all();
    }
    events_.close();
}

// The daemon is gone, and the kernel has destroyed its queue pairs (H2). If this process has a context of its own, the
// kernel destroys the queue pairs there only after the last copy of the command descriptor is closed; so lose() first
// deregisters the regions. Then all work requests in flight end here.
// Sessions that are closed already stay as they are, because they have all their completions.
void AttachedState::bury() noexcept {
    lose();
    {
        const std::lock_guard lock(mutex_);
        buried_ = true;
        for (auto& [id, session] : sessions_) {
            SessionHeader* header = session_header(session.memory.mapping.data());
            std::uint32_t open = 0;
            (void)header->closed.compare_exchange_strong(open, SessionHeader::kDaemonGone, std::memory_order_acq_rel);
            if (session.bell.valid()) {
                // The daemon's socket of the bell is closed, so from now on this process's socket is always readable.
                (void)header->application_sleep.take();
            }
        }
    }
    events_.close();
}

// ---- Attachment ----

Attachment::Attachment(const AttachOptions& options) : Attachment(options, make_control_side<AttachedState>(options)) {}

Attachment::Attachment(const AttachOptions& options, std::shared_ptr<AttachedState> state)
    : Context(state), options_(options), state_(state.get()) {}

Attachment::Attachment(Attachment&& other) noexcept
    : Context(std::move(other)), options_(std::move(other.options_)), state_(std::exchange(other.state_, nullptr)) {}

Attachment& Attachment::operator=(Attachment&& other) noexcept {
    Context::operator=(std::move(other));
    std::swap(options_, other.options_);
    std::swap(state_, other.state_);
    return *this;
}

Attachment::~Attachment() {
    try {
        if (valid() && !state_->is_forked()) {
            stop();
        }
    } catch (const std::exception& error) {
        log_error("detaching: {}", error.what());
    }
}

bool Attachment::stop() {
    return control().stop();
}

bool Attachment::lost() const noexcept {
    return state_ == nullptr || state_->lost();
}

void Attachment::reattach(std::chrono::milliseconds timeout) {
    AttachOptions options = options_;
    options.timeout = timeout;
    Attachment again(options);
    again.options_.timeout = options_.timeout;
    *this = std::move(again);  // detaches the previous attachment, unless it is lost
}

std::uint32_t Attachment::client() const {
    (void)control();
    return state_->client();
}

}  // namespace pollcore
