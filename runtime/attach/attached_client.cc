// The daemon's side of one attached process: its messages, and requests that wait for something, such as a connection.
// Other requests are in other files. They are answered at once (attached_requests.cc), may take long in the kernel
// (attached_errands.cc), or end an object (attached_ends.cc).
#include "attach/attached_client.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "attach/answering.hpp"
#include "base/log.hpp"
#include "base/map_place.hpp"
#include "base/printable.hpp"
#include "base/undo.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// After this time, turn() checks again a request that waits for a worker or for the network.
constexpr auto kSoon = 200us;

}  // namespace

AttachedClient::AttachedClient(RuntimeState& runtime, std::uint32_t number, std::string who, Rights rights,
                               std::shared_ptr<Account> account, Ways ways)
    : runtime_(runtime),
      number_(number),
      who_(std::move(who)),
      rights_(rights),
      account_(std::move(account)),
      ways_(std::move(ways)),
      counters_(std::make_shared<SharedMemory>(
          make_published_memory(kPoolsOfOne * sizeof(ReceivePoolCounters), "pollcore counters"))),
      counters_used_(kPoolsOfOne, false) {}

AttachedClient::~AttachedClient() {
    if (ended_) {
        return;
    }
    abandon();
    runtime_stops();
    while (!stop_listening_at_some() || !close_some()) {
        runtime_.wait_a_little_here();
        conclude_errands();
        left_in_turn_ = kEndsInTurn;
    }
}

AttachedClient::Taken AttachedClient::take(const wire::Packet& packet, Handed handed) {
    const wire::Header header = packet.header();
    if (ending_) {
        return Taken::yes;  // an answer would come too late
    }
    if (packet.truncated || header.magic != wire::kMagic || header.id == 0) {
        return Taken::not_ours;
    }
    if (header.version != wire::kVersion) {
        refuse<wire::Attach>(
            node_for<wire::Attach>(), header.id,
            Error(EPROTO, fmt::format("this daemon speaks version {} of the attach protocol, and the process {}",
                                      wire::kVersion, header.version)));
        return Taken::other_version;
    }
    if (!attached_ && header.kind != wire::Kind::attach) {
        return Taken::not_ours;
    }
    return answer_by_kind(packet, handed) ? Taken::yes : Taken::not_ours;
}

bool AttachedClient::answer_by_kind(const wire::Packet& packet, Handed& handed) {
    switch (packet.header().kind) {
        case wire::Kind::attach: return answer<wire::Attach>(packet, handed);
        case wire::Kind::detach: return answer<wire::Detach>(packet, handed);
        case wire::Kind::open_session: return answer<wire::OpenSession>(packet, handed);
        case wire::Kind::close_session: return answer<wire::CloseSession>(packet, handed);
        case wire::Kind::create_qp: return answer<wire::CreateQp>(packet, handed);
        case wire::Kind::close_qp: return answer<wire::CloseQp>(packet, handed);
        case wire::Kind::reset_qp: return answer<wire::ResetQp>(packet, handed);
        case wire::Kind::qp_info: return answer<wire::AskQpInfo>(packet, handed);
        case wire::Kind::qp_status: return answer<wire::AskQpStatus>(packet, handed);
        case wire::Kind::connect_to: return answer<wire::ConnectTo>(packet, handed);
        case wire::Kind::connect: return answer<wire::Connect>(packet, handed);
        case wire::Kind::disconnect: return answer<wire::Disconnect>(packet, handed);
        case wire::Kind::rnr_counts: return answer<wire::AskRnrCounts>(packet, handed);
        case wire::Kind::listen: return answer<wire::Listen>(packet, handed);
        case wire::Kind::stop_listening: return answer<wire::StopListening>(packet, handed);
        case wire::Kind::next_request: return answer<wire::NextRequest>(packet, handed);
        case wire::Kind::accept: return answer<wire::Accept>(packet, handed);
        case wire::Kind::reject: return answer<wire::Reject>(packet, handed);
        case wire::Kind::create_pd: return answer<wire::CreatePd>(packet, handed);
        case wire::Kind::release_pd: return answer<wire::ReleasePd>(packet, handed);
        case wire::Kind::register_memory: return answer<wire::RegisterMemory>(packet, handed);
        case wire::Kind::deregister: return answer<wire::Deregister>(packet, handed);
        case wire::Kind::create_window: return answer<wire::CreateWindow>(packet, handed);
        case wire::Kind::window_rkey: return answer<wire::AskWindowRkey>(packet, handed);
        case wire::Kind::deallocate: return answer<wire::Deallocate>(packet, handed);
        case wire::Kind::create_ah: return answer<wire::CreateAh>(packet, handed);
        case wire::Kind::create_ah_to: return answer<wire::CreateAhTo>(packet, handed);
        case wire::Kind::create_ah_back: return answer<wire::CreateAhBack>(packet, handed);
        case wire::Kind::destroy_ah: return answer<wire::DestroyAh>(packet, handed);
        case wire::Kind::create_srq: return answer<wire::CreateSrq>(packet, handed);
        case wire::Kind::close_srq: return answer<wire::CloseSrq>(packet, handed);
        case wire::Kind::arm_limit: return answer<wire::ArmLimit>(packet, handed);
        case wire::Kind::srq_limit: return answer<wire::AskSrqLimit>(packet, handed);
        case wire::Kind::create_pool: return answer<wire::CreatePool>(packet, handed);
        case wire::Kind::close_pool: return answer<wire::ClosePool>(packet, handed);
        case wire::Kind::held_buffers: return answer<wire::AskHeldBuffers>(packet, handed);
        case wire::Kind::worker_counters: return answer<wire::AskWorkerCounters>(packet, handed);
        case wire::Kind::control_counters: return answer<wire::AskControlCounters>(packet, handed);
        case wire::Kind::report_device: return answer<wire::AskDevice>(packet, handed);
        case wire::Kind::begin_connect: return answer<wire::BeginConnect>(packet, handed);
        case wire::Kind::begin_accept: return answer<wire::BeginAccept>(packet, handed);
        case wire::Kind::begin_ending: return answer<wire::BeginEnding>(packet, handed);
        case wire::Kind::cancel: return answer<wire::Cancel>(packet, handed);
        case wire::Kind::next_events: return answer<wire::NextEvents>(packet, handed);
        case wire::Kind::modify_qp: return answer<wire::ModifyQp>(packet, handed);
        case wire::Kind::query_qp: return answer<wire::AskQp>(packet, handed);
        case wire::Kind::query_device: return answer<wire::AskDeviceAttributes>(packet, handed);
        case wire::Kind::query_port: return answer<wire::AskPort>(packet, handed);
        case wire::Kind::query_gids: return answer<wire::AskGids>(packet, handed);
        case wire::Kind::query_pkey: return answer<wire::AskPkey>(packet, handed);
        case wire::Kind::share_context: return answer<wire::ShareContext>(packet, handed);
        case wire::Kind::find_key: return answer<wire::FindKey>(packet, handed);
        case wire::Kind::copy_statistics: return answer<wire::CopyStatistics>(packet, handed);
        case wire::Kind::none:
        case wire::Kind::end:
        case wire::Kind::event: break;
    }
    return false;
}

void AttachedClient::log_refusals() noexcept {
    std::uint64_t slots = slots_refused_of_closed_;
    for (const auto& [id, place] : sessions_) {
        slots += runtime_.submissions_refused(id);
    }
    if (slots > slots_refused_) {
        log_warning("client {} ({}): its workers refused {} submissions that its own session should have refused",
                    number_, who_, slots - slots_refused_);
    }
    slots_refused_ = slots;
    if (requests_refused_ != 0) {
        log_warning("client {} ({}): {} requests were refused, the last one since: {}", number_, who_,
                    requests_refused_, last_refusal_);
        requests_refused_ = 0;
    }
}

void AttachedClient::tell(const Event& event, std::uint32_t client) {
    // A process with a context of its own learns of the port by that context.
    const bool its_own = client == number_;
    if ((client != 0 && !its_own) || (client == 0 && own_devices_.contains(event.device))) {
        return;
    }
    if (ending_ || !attached_ || (event.qp.valid() && !qps_.contains(event.qp)) ||
        (event.srq.valid() && !srqs_.contains(event.srq)) || !event.worker.empty()) {
        return;
    }
    wire::Request<wire::EventTold> told;
    std::memset(static_cast<void*>(&told), 0, sizeof(told));
    told.header = {.kind = wire::Kind::event};
    told.body.type = static_cast<std::uint32_t>(event.type);
    told.body.qp = event.qp;
    told.body.srq = event.srq;
    told.body.port = event.port;
    told.body.lost_after = event.lost_after;
    told.body.device = NameText(event.device);
    told.body.text = wire::ErrorText(std::string_view(event.text).substr(0, sizeof(wire::ErrorText)));
    ReplyNode node(1);
    node.front().bytes.resize(sizeof(told));
    std::memcpy(node.front().bytes.data(), &told, sizeof(told));
    ways_.send(std::move(node));
}

wire::Outcome AttachedClient::refusal(const std::exception& why) noexcept {
    ++requests_refused_;
    ++refused_ever_;
    wire::Outcome outcome;
    try {
        last_refusal_ = printable(why.what());
        const ToldError told = told_error(why);
        outcome.error = told.error;
        outcome.text = wire::ErrorText(std::string_view(told.text).substr(0, sizeof(wire::ErrorText)));
    } catch (const std::bad_alloc&) {
        outcome.error = ENOMEM;
    }
    return outcome;
}

// ---- Requests that take time ----

AttachedClient::Clock::time_point AttachedClient::turn(int& left) {
    const Clock::time_point now = runtime_.platform->now();
    left_in_turn_ = left;
    conclude_errands();
    const bool was_ending = ending_;
    // A call of over() may add a request to later_. It may also begin the end of this process, which clears later_.
    std::size_t left_to_ask = later_.size();
    for (std::size_t i = 0; i < left_to_ask;) {
        Later asked = std::move(later_[i]);
        bool over = false;
        try {
            over = asked.over(now);
        } catch (const std::exception& error) {
            log_error("client {}: {}", number_, error.what());
            over = true;
        }
        if (ending_ != was_ending) {
            break;
        }
        later_[i] = std::move(asked);
        if (over) {
            later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(i));
            --left_to_ask;
        } else {
            ++i;
        }
    }
    if (ending_ && !ended_) {
        end_some();
    }
    left = left_in_turn_;
    look_for_abuse();
    if (ending_ && !ended_) {
        return left <= 0 ? now : now + kSoon;
    }
    if (left <= 0 && (!errands_.empty() || !later_.empty())) {
        return now;
    }
    const bool looks_on = !errands_.empty() && !errands_.front()->begun;
    Clock::time_point next = now + (looks_on ? Clock::duration(kSoon) : Clock::duration(kSeldom));
    for (const Later& later : later_) {
        next = std::min(next, std::max(later.next, now + kSoon));
    }
    return next;
}

ProcessFigures AttachedClient::figures() const noexcept {
    return {.number = number_,
            .pid = account_->pid(),
            .uid = account_->uid(),
            .name = who_,
            .ending = ending_,
            .own_memory = !own_devices_.empty(),
            .sessions = account_->has(Thing::session),
            .queue_pairs = account_->has(Thing::queue_pair),
            .shared_receive_queues = account_->has(Thing::shared_receive_queue),
            .receive_pools = account_->has(Thing::receive_pool),
            .listeners = account_->has(Thing::listener),
            .memory_regions = account_->has(Thing::memory_region),
            .memory_windows = account_->has(Thing::memory_window),
            .address_handles = account_->has(Thing::address_handle),
            .protection_domains = account_->has(Thing::protection_domain),
            .work_requests = account_->has(Thing::work_request),
            .bytes = account_->has(Thing::byte),
            .pinned_bytes = account_->has(Thing::pinned_byte),
            .refused = refused_ever_};
}

AttachedProcess AttachedClient::description() const {
    return {.number = number_,
            .pid = account_->pid(),
            .uid = account_->uid(),
            .description = who_,
            .ending = ending_,
            .own_memory = !own_devices_.empty(),
            .refused = refused_ever_,
            .holdings = account_->holdings()};
}

// Allocates a node for attempts_, before the attempt begins (D29).
AttachedClient::Attempts::node_type AttachedClient::new_attempt() {
    Attempts one{ConnectionKey{}};
    return one.extract(one.begin());
}

namespace {

ConnectOptions options_of(const auto& asked) {
    ConnectOptions options{.path = asked.path,
                           .private_data = unpacked(asked.private_data),
                           .timeout = std::chrono::milliseconds(asked.timeout_ms)};
    if constexpr (requires { asked.raw; }) {
        options.form = asked.raw != 0 ? PrivateDataForm::raw : PrivateDataForm::framed;
    }
    return options;
}

}  // namespace

const FlowBlock& AttachedClient::require_request(std::uint32_t device, std::uint64_t request) const {
    const auto found = requests_.find({device, request});
    if (found == requests_.end()) {
        throw Error(EINVAL, "the connection request was answered already, or is not this process's");
    }
    return found->second;
}

void AttachedClient::begin(std::uint64_t id, const wire::Connect& asked) {
    (void)require_qp(asked.handle);
    const ConnectOptions options = options_of(asked);
    const std::string address = asked.address.string();
    auto attempt = new_attempt();
    const ConnectionKey key = runtime_.begin_connect_here(asked.handle, address, options);
    attempt.value() = key;
    attempts_.insert(std::move(attempt));
    const Clock::time_point deadline = runtime_.platform->now() + options.timeout;
    later<wire::Connect>(
        id,
        [this, key, handle = asked.handle, options, address,
         deadline](Clock::time_point now) -> std::optional<wire::Connected> {
            if (!runtime_.has_outcome(key) && now < deadline) {
                return std::nullopt;
            }
            attempts_.erase(key);
            return wire::Connected{.answered = packed(runtime_.conclude_here(
                                       key, handle, options, fmt::format("connecting to {}", address)))};
        },
        options.timeout);
}

void AttachedClient::begin(std::uint64_t id, const wire::Accept& asked) {
    (void)require_qp(asked.handle);
    const FlowBlock& flow = require_request(asked.device, asked.request);
    const ConnectOptions options = options_of(asked);
    auto attempt = new_attempt();
    const ConnectionKey key = runtime_.begin_accept_here(asked.device, asked.request, asked.handle, flow, options);
    answered(asked.device, asked.request);
    attempt.value() = key;
    attempts_.insert(std::move(attempt));
    const Clock::time_point deadline = runtime_.platform->now() + options.timeout;
    later<wire::Accept>(
        id,
        [this, key, handle = asked.handle, options, deadline](Clock::time_point now) -> std::optional<wire::Nothing> {
            if (!runtime_.has_outcome(key) && now < deadline) {
                return std::nullopt;
            }
            attempts_.erase(key);
            (void)runtime_.conclude_here(key, handle, options, "accepting a connection");
            return wire::Nothing{};
        },
        options.timeout);
}

void AttachedClient::begin(std::uint64_t id, const wire::NextRequest& asked) {
    const std::pair listener(asked.device, asked.listener);
    const Clock::time_point deadline = runtime_.platform->now() + std::chrono::milliseconds(asked.timeout_ms);
    later<wire::NextRequest>(
        id,
        [this, listener, deadline](Clock::time_point now) -> std::optional<wire::Incoming> {
            if (!listeners_.contains(listener)) {
                throw Error(ESHUTDOWN, "the listener was closed");
            }
            require_room(requests_.size(), kRequestsInHandMax,
                         "connection requests that it has neither accepted nor rejected");
            wire::Incoming incoming;
            MapPlace own(requests_);
            if (std::optional<IncomingConnection> came = runtime_.next_request(listener.first, listener.second, 0ms)) {
                incoming.id = came->id;
                incoming.peer = wire::AddressText(std::string_view(came->peer).substr(0, sizeof(wire::AddressText)));
                incoming.flow = came->flow;
                incoming.private_data = packed(came->private_data);
                incoming.max_dest_rd_atomic = came->max_dest_rd_atomic;
                own.value() = came->flow;
                own.take({listener.first, came->id});
            } else if (now < deadline) {
                return std::nullopt;
            }
            return incoming;
        },
        std::chrono::milliseconds(asked.timeout_ms));
}

// ---- Operations that end with an event ----

wire::Nothing AttachedClient::carry_out(const wire::BeginConnect& asked) {
    (void)require_qp(asked.what.handle);
    runtime_.begin_connect_here(asked.what.handle, asked.what.address.string(), options_of(asked.what),
                                Report::by_event);
    return {};
}

wire::Nothing AttachedClient::carry_out(const wire::BeginAccept& asked) {
    (void)require_qp(asked.what.handle);
    const FlowBlock& flow = require_request(asked.what.device, asked.what.request);
    runtime_.begin_accept_here(asked.what.device, asked.what.request, asked.what.handle, flow, options_of(asked.what),
                               Report::by_event);
    answered(asked.what.device, asked.what.request);
    return {};
}

wire::Nothing AttachedClient::carry_out(const wire::BeginEnding& asked) {
    const QpHandle handle = asked.handle;
    OwnQp& own = require_qp(handle);
    own.busy = true;  // until tell_of_connection(), which this call may cause
    try {
        runtime_.begin_ending_here(
            handle, asked.reset != 0,
            std::chrono::milliseconds(std::min<std::uint64_t>(asked.timeout_of_end_ms, UINT32_MAX)));
    } catch (...) {
        own.busy = false;
        throw;
    }
    return {};
}

wire::Cancelled AttachedClient::carry_out(const wire::Cancel& asked) {
    const QpHandle handle = present(asked.handle);
    const auto own = qps_.find(handle);
    // A queue pair that is busy for another reason is being closed by another request.
    if (own == qps_.end() || (own->second.busy && !runtime_.is_ending_here(handle))) {
        return {};
    }
    if (asked.abandon == 0) {
        runtime_.cancel_here(handle);
        return {};
    }
    Undo not_busy([&, was_busy = std::exchange(own->second.busy, true)]() noexcept { own->second.busy = was_busy; });
    if (!runtime_.abandon_here(handle)) {
        return {};
    }
    not_busy.keep();  // and `own` may be gone
    events_.remove(handle);
    closed_qps_.erase(handle);
    return {.abandoned = 1};
}

void AttachedClient::tell_of_connection(Event&& event) noexcept {
    const auto own = qps_.find(event.qp);
    const bool ends = event.type == EventType::closed || event.type == EventType::reset_done;
    if (own != qps_.end() && ends) {
        own->second.busy = false;
        if (event.error == 0 && event.type == EventType::closed) {
            auto closed = qps_.extract(own);
            if (events_.contains(event.qp)) {
                closed_qps_.insert(std::move(closed));
            }
        } else if (event.error == 0) {
            auto its = qps_.extract(own);
            its.key() = event.renewed;
            qps_.insert(std::move(its));
        }
    }
    events_.keep(std::move(event));
}

void AttachedClient::begin(std::uint64_t id, const wire::NextEvents&) {
    if (events_asked_) {
        throw Error(EALREADY, "this process waits for events already");
    }
    later<wire::NextEvents>(
        id,
        [this](Clock::time_point) -> std::optional<wire::ConnectionEvents> {
            if (events_.empty() && !first_event_) {
                return std::nullopt;
            }
            events_asked_ = false;
            return next_events();
        },
        std::chrono::hours(24));
    events_asked_ = true;
}

wire::ConnectionEvents AttachedClient::next_events() {
    wire::ConnectionEvents told;
    while (told.count < told.events.size() && (first_event_ || !events_.empty())) {
        Event event = first_event_ ? std::move(*first_event_) : events_.take();
        first_event_.reset();
        if (event.type == EventType::closed && event.error == 0) {
            events_.remove(event.qp);
            closed_qps_.erase(event.qp);
        }
        if (!event.text.empty() || !event.private_data.empty()) {
            if (told.detailed != wire::ConnectionEvents::kMost) {
                first_event_ = std::move(event);
                break;
            }
            told.detailed = told.count;
            told.text = wire::ErrorText(std::string_view(event.text).substr(0, sizeof(wire::ErrorText)));
            told.private_data = packed(event.private_data);
        }
        told.events[told.count++] = {.type = static_cast<std::uint32_t>(event.type),
                                     .qp = event.qp,
                                     .renewed = event.renewed,
                                     .error = event.error,
                                     .drained = event.drained,
                                     .listener_device = event.listener.device,
                                     .listener = event.listener.number};
    }
    return told;
}

}  // namespace pollcore
