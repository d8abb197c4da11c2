// An attached process at the daemon: taking its messages, what takes time, and its end.
#include "attach/attached_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "attach/answering.hpp"
#include "base/log.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

// Pools whose counters it may see.
constexpr std::uint32_t kPoolsMax = 64;

// How soon what the worker or the network will have done is looked at again.
constexpr auto kSoon = 200us;
// And what only another message of a peer can bring; whatever comes is told before.
constexpr auto kSeldom = 1s;

}  // namespace

AttachedClient::AttachedClient(RuntimeState& runtime, std::uint32_t number, std::string who, const QuotaConfig& quota, Ways ways)
    : runtime_(runtime),
      number_(number),
      who_(std::move(who)),
      quota_(quota),
      ways_(std::move(ways)),
      counters_(std::make_shared<SharedMemory>(make_published_memory(kPoolsMax * sizeof(ReceivePoolCounters), "pollcore counters"))),
      counters_used_(kPoolsMax, false) {}

AttachedClient::~AttachedClient() {
    if (!ended_) {
        runtime_stops();
        close_resources(true);
    }
}

AttachedClient::Taken AttachedClient::take(wire::Packet& packet) {
    const wire::Header header = packet.header();
    if (ending_) {
        return Taken::yes;  // its answers would come too late
    }
    if (packet.truncated || header.magic != wire::kMagic || header.id == 0) {
        return Taken::not_ours;
    }
    if (header.version != wire::kVersion) {
        refuse<wire::Attach>(header.id, Error(EPROTO, fmt::format("this daemon speaks version {} of the attach protocol, and the process {}",
                                                                 wire::kVersion, header.version)));
        return Taken::other_version;
    }
    if (!attached_ && header.kind != wire::Kind::attach) {
        return Taken::not_ours;
    }
    return answer_by_kind(packet) ? Taken::yes : Taken::not_ours;
}

bool AttachedClient::answer_by_kind(wire::Packet& packet) {
    switch (packet.header().kind) {
        case wire::Kind::attach: return answer<wire::Attach>(packet);
        case wire::Kind::detach: return answer<wire::Detach>(packet);
        case wire::Kind::open_session: return answer<wire::OpenSession>(packet);
        case wire::Kind::close_session: return answer<wire::CloseSession>(packet);
        case wire::Kind::create_qp: return answer<wire::CreateQp>(packet);
        case wire::Kind::close_qp: return answer<wire::CloseQp>(packet);
        case wire::Kind::reset_qp: return answer<wire::ResetQp>(packet);
        case wire::Kind::qp_info: return answer<wire::AskQpInfo>(packet);
        case wire::Kind::qp_status: return answer<wire::AskQpStatus>(packet);
        case wire::Kind::connect_to: return answer<wire::ConnectTo>(packet);
        case wire::Kind::connect: return answer<wire::Connect>(packet);
        case wire::Kind::disconnect: return answer<wire::Disconnect>(packet);
        case wire::Kind::rnr_counts: return answer<wire::AskRnrCounts>(packet);
        case wire::Kind::listen: return answer<wire::Listen>(packet);
        case wire::Kind::stop_listening: return answer<wire::StopListening>(packet);
        case wire::Kind::next_request: return answer<wire::NextRequest>(packet);
        case wire::Kind::accept: return answer<wire::Accept>(packet);
        case wire::Kind::reject: return answer<wire::Reject>(packet);
        case wire::Kind::create_pd: return answer<wire::CreatePd>(packet);
        case wire::Kind::release_pd: return answer<wire::ReleasePd>(packet);
        case wire::Kind::register_memory: return answer<wire::RegisterMemory>(packet);
        case wire::Kind::deregister: return answer<wire::Deregister>(packet);
        case wire::Kind::create_window: return answer<wire::CreateWindow>(packet);
        case wire::Kind::window_rkey: return answer<wire::AskWindowRkey>(packet);
        case wire::Kind::deallocate: return answer<wire::Deallocate>(packet);
        case wire::Kind::create_ah: return answer<wire::CreateAh>(packet);
        case wire::Kind::create_ah_back: return answer<wire::CreateAhBack>(packet);
        case wire::Kind::destroy_ah: return answer<wire::DestroyAh>(packet);
        case wire::Kind::create_srq: return answer<wire::CreateSrq>(packet);
        case wire::Kind::close_srq: return answer<wire::CloseSrq>(packet);
        case wire::Kind::arm_limit: return answer<wire::ArmLimit>(packet);
        case wire::Kind::srq_limit: return answer<wire::AskSrqLimit>(packet);
        case wire::Kind::create_pool: return answer<wire::CreatePool>(packet);
        case wire::Kind::close_pool: return answer<wire::ClosePool>(packet);
        case wire::Kind::held_buffers: return answer<wire::AskHeldBuffers>(packet);
        case wire::Kind::worker_counters: return answer<wire::AskWorkerCounters>(packet);
        case wire::Kind::control_counters: return answer<wire::AskControlCounters>(packet);
        case wire::Kind::report_device: return answer<wire::AskDevice>(packet);
        case wire::Kind::none:
        case wire::Kind::end:
        case wire::Kind::event: break;
    }
    return false;
}

void AttachedClient::log_refusals() {
    std::uint64_t slots = slots_refused_of_closed_;
    for (const std::uint32_t id : sessions_) {
        slots += runtime_.submissions_refused(id);
    }
    if (slots > slots_refused_) {
        log_warning("client {} ({}): its workers refused {} submissions that a session does not let through", number_, who_,
                    slots - slots_refused_);
    }
    slots_refused_ = slots;
    if (requests_refused_ != 0) {
        log_warning("client {} ({}): {} requests were refused, the last one since: {}", number_, who_, requests_refused_, last_refusal_);
        requests_refused_ = 0;
    }
}

void AttachedClient::tell(const Event& event) {
    if (ending_ || !attached_ || (event.qp.valid() && !qps_.contains(event.qp)) || (event.srq.valid() && !srqs_.contains(event.srq)) ||
        !event.worker.empty()) {
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
    const auto bytes = std::as_bytes(std::span(&told, 1));
    ways_.send({.bytes = {bytes.begin(), bytes.end()}, .descriptors = {}});
}

// ---- What takes time ----

AttachedClient::Clock::time_point AttachedClient::turn() {
    const Clock::time_point now = runtime_.platform->now();
    const bool was_ending = ending_;
    // Each may begin another, and the end of this process, which drops what it waits for.
    for (Later& later : std::exchange(later_, {})) {
        bool over = false;
        try {
            over = later.over(now);
        } catch (const std::exception& error) {
            log_error("client {}: {}", number_, error.what());
            over = true;
        }
        if (ending_ != was_ending) {
            break;
        }
        if (!over) {
            later_.push_back(std::move(later));
        }
    }
    Clock::time_point next = now + kSeldom;
    for (const Later& later : later_) {
        next = std::min(next, std::max(later.next, now + kSoon));
    }
    return next;
}

template <class Body>
void AttachedClient::later(std::uint64_t id, std::function<std::optional<typename Body::Answered>(Clock::time_point now)> turn,
                           std::chrono::milliseconds within) {
    const Clock::time_point next = runtime_.platform->now() + within;
    later_.push_back({.over = [this, id, turn = std::move(turn)](Clock::time_point now) {
                          try {
                              const std::optional<typename Body::Answered> answered = turn(now);
                              if (answered) {
                                  reply<Body>(id, *answered);
                              }
                              return answered.has_value();
                          } catch (const std::exception& error) {
                              refuse<Body>(id, error);
                              return true;
                          }
                      },
                      .next = next});
}

void AttachedClient::begin(std::uint64_t id, const wire::CloseQp& asked) {
    if (!qps_.contains(asked.handle)) {
        return reply<wire::CloseQp>(id, {.handle = asked.handle, .drained = 1});  // closed with its session
    }
    OwnQp& own = require_qp(asked.handle);
    std::optional<Retirement> retirement =
        runtime_.begin_retiring_here(asked.handle, runtime_.platform->now() + runtime_.config.drain_timeout);
    own.busy = true;
    later<wire::CloseQp>(id, [this, handle = asked.handle, retirement](Clock::time_point) mutable -> std::optional<wire::QpNamed> {
        const std::optional<bool> drained = retirement ? runtime_.retired_here(*retirement) : std::optional(true);
        if (!drained) {
            return std::nullopt;
        }
        try {
            runtime_.end_retired_here(handle, *drained);
        } catch (...) {
            if (const auto kept = qps_.find(handle); kept != qps_.end()) {
                kept->second.busy = false;
            }
            throw;
        }
        forget_qp(handle);
        return wire::QpNamed{.handle = handle, .drained = *drained};
    }, 0ms);
}

void AttachedClient::begin(std::uint64_t id, const wire::ResetQp& asked) {
    OwnQp& own = require_qp(asked.handle);
    (void)runtime_.info(asked.handle);  // of one that was lost with its device there is none
    std::optional<Retirement> retirement =
        runtime_.begin_retiring_here(asked.handle, runtime_.platform->now() + runtime_.config.drain_timeout);
    own.busy = true;
    later<wire::ResetQp>(id, [this, handle = asked.handle, retirement](Clock::time_point) mutable -> std::optional<wire::QpNamed> {
        const std::optional<bool> drained = retirement ? runtime_.retired_here(*retirement) : std::optional(true);
        if (!drained) {
            return std::nullopt;
        }
        const auto known = qps_.find(handle);
        if (known != qps_.end()) {
            known->second.busy = false;
        }
        const QpHandle renewed = runtime_.restart_retired_here(handle, *drained).first;
        if (known != qps_.end()) {
            OwnQp was = std::move(known->second);
            qps_.erase(known);
            qps_.emplace(renewed, std::move(was));
        }
        return wire::QpNamed{.handle = renewed, .drained = *drained};
    }, 0ms);
}

void AttachedClient::begin(std::uint64_t id, const wire::Connect& asked) {
    (void)require_qp(asked.handle);
    const ConnectOptions options{.path = asked.path,
                                 .private_data = unpacked(asked.private_data),
                                 .timeout = std::chrono::milliseconds(asked.timeout_ms)};
    const std::string address = asked.address.string();
    const ConnectionKey key = runtime_.begin_connect_here(asked.handle, address, options);
    const Clock::time_point deadline = runtime_.platform->now() + options.timeout;
    later<wire::Connect>(
        id,
        [this, key, handle = asked.handle, options, address, deadline](Clock::time_point now) -> std::optional<wire::Connected> {
            if (!runtime_.has_outcome(key) && now < deadline) {
                return std::nullopt;
            }
            return wire::Connected{
                .answered = packed(runtime_.conclude_here(key, handle, options, fmt::format("connecting to {}", address)))};
        },
        options.timeout);
}

void AttachedClient::begin(std::uint64_t id, const wire::Accept& asked) {
    (void)require_qp(asked.handle);
    const std::pair request(asked.device, asked.request);
    if (!requests_.contains(request)) {
        throw Error(EINVAL, "the connection request was answered already, or is not this process's");
    }
    const ConnectOptions options{.path = asked.path,
                                 .private_data = unpacked(asked.private_data),
                                 .timeout = std::chrono::milliseconds(asked.timeout_ms)};
    const ConnectionKey key = runtime_.begin_accept_here(asked.device, asked.request, asked.handle, requests_.at(request), options);
    requests_.erase(request);
    const Clock::time_point deadline = runtime_.platform->now() + options.timeout;
    later<wire::Accept>(
        id,
        [this, key, handle = asked.handle, options, deadline](Clock::time_point now) -> std::optional<wire::Nothing> {
            if (!runtime_.has_outcome(key) && now < deadline) {
                return std::nullopt;
            }
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
            wire::Incoming incoming;
            if (std::optional<IncomingConnection> came = runtime_.next_request(listener.first, listener.second, 0ms)) {
                incoming.id = came->id;
                incoming.peer = wire::AddressText(std::string_view(came->peer).substr(0, sizeof(wire::AddressText)));
                incoming.flow = came->flow;
                incoming.private_data = packed(came->private_data);
                requests_.emplace(std::pair(listener.first, came->id), came->flow);
            } else if (now < deadline) {
                return std::nullopt;
            }
            return incoming;
        },
        std::chrono::milliseconds(asked.timeout_ms));
}

// Its queue pairs first, all at a time, so that the control thread does not wait for them one by one.
void AttachedClient::begin(std::uint64_t id, const wire::CloseSession& asked) {
    if (!sessions_.contains(asked.id)) {
        return reply<wire::CloseSession>(id, {});  // closed before
    }
    later<wire::CloseSession>(
        id,
        [this, session = asked.id,
         ends = std::optional<std::vector<Retiring>>()](Clock::time_point) mutable -> std::optional<wire::Nothing> {
            if (!sessions_.contains(session)) {
                return wire::Nothing{};  // asked for twice
            }
            if (!ends) {
                const std::vector<QpHandle> its = qps_of(session);
                if (std::any_of(its.begin(), its.end(), [&](QpHandle handle) { return qps_.at(handle).busy; })) {
                    return std::nullopt;  // being closed or reset, which ends by itself
                }
                ends = retire(its, runtime_.config.drain_timeout);
            }
            if (!all_retired(*ends)) {
                return std::nullopt;
            }
            // What it may have made meanwhile ends here too, and is waited for.
            (void)runtime_.close_session_here(session, runtime_.platform->now());
            drop_session(session);
            return wire::Nothing{};
        },
        0ms);
}

// ---- Registering ----

// On another thread.
void AttachedClient::Registration::carry_out() noexcept {
    try {
        if (!cancelled.load(std::memory_order_relaxed)) {
            if (fd.valid()) {
                region.memory->mapping = map_and_seal(fd, plan.bytes);
            }
            region.data = static_cast<std::byte*>(region.memory->mapping.data()) + offset;
            plan.data = region.data;
            mr = plan.carry_out();
        }
    } catch (...) {
        failure = std::current_exception();
    }
    over.store(true, std::memory_order_release);
}

void AttachedClient::begin(std::uint64_t id, const wire::RegisterMemory& asked, wire::Packet& packet) {
    require_room(regions_.size() + registrations_.size(), kSmallThingsMax, "memory regions");
    const auto registration = std::make_shared<Registration>();
    OwnRegion& own = registration->region;
    if (asked.parent == 0) {
        if (packet.descriptors.size() != 1) {
            throw Error(EPROTO, "memory to register comes as one memfd");
        }
        // Before its pages are there.
        if (asked.bytes > quota_.registered || *bytes_registered_ > quota_.registered - asked.bytes) {
            throw Error(EDQUOT, fmt::format("{} bytes more to register, and this process may have {}, of which it has {}", asked.bytes,
                                            quota_.registered, *bytes_registered_));
        }
        registration->fd = std::move(packet.descriptors.front());
        own.memory = std::make_shared<OwnMemory>(bytes_registered_, asked.bytes);
    } else {
        const auto parent = regions_.find(asked.parent);
        if (parent == regions_.end() || asked.bytes == 0 || asked.offset > parent->second.length ||
            asked.bytes > parent->second.length - asked.offset) {
            throw Error(EINVAL, "a part of a memory region that is not this process's, or not so long");
        }
        own.memory = parent->second.memory;
        registration->offset =
            static_cast<std::uint64_t>(parent->second.data - static_cast<std::byte*>(own.memory->mapping.data())) + asked.offset;
    }
    const std::string device = device_name(asked.device);
    own.length = asked.bytes;
    own.pd = pd_for(device, asked.pd);
    registration->plan = runtime_.plan_region_here(nullptr, asked.bytes, asked.iova, asked.access, device, own.pd);
    registrations_.push_back(registration);
    later<wire::RegisterMemory>(
        id,
        [this, registration](Clock::time_point) -> std::optional<wire::Registered> {
            return registration->over.load(std::memory_order_acquire) ? std::optional(conclude(*registration)) : std::nullopt;
        },
        kSeldom);
    register_next();
}

// One of a process at a time, so that those of many take turns.
void AttachedClient::register_next() {
    if (registrations_.empty() || registrations_.front()->begun) {
        return;
    }
    const std::shared_ptr<Registration>& next = registrations_.front();
    next->begun = true;
    ways_.elsewhere([next] { next->carry_out(); });
}

wire::Registered AttachedClient::conclude(Registration& registration) {
    std::erase_if(registrations_, [&](const auto& each) { return each.get() == &registration; });
    register_next();
    OwnRegion region = std::exchange(registration.region, {});
    if (registration.failure) {
        std::rethrow_exception(registration.failure);
    }
    if (registration.mr == nullptr) {
        throw Error(ESHUTDOWN, "the daemon is stopping");
    }
    const RegionInfo info = runtime_.add_region_here(registration.plan, std::move(registration.mr), {});
    regions_.emplace(info.id, std::move(region));
    return {.id = info.id, .lkey = info.lkey, .rkey = info.rkey, .handle = info.handle};
}

// Those that have not begun never do.
void AttachedClient::cancel_registrations() noexcept {
    for (const auto& registration : registrations_) {
        registration->cancelled.store(true, std::memory_order_relaxed);
        if (!registration->begun) {
            registration->region = {};
            registration->fd.reset();
            registration->over.store(true, std::memory_order_release);
        }
    }
}

// What has come to an end for nobody any more is given back, here: who carried it out may still hold it.
bool AttachedClient::registers_nothing() noexcept {
    std::erase_if(registrations_, [](const auto& registration) {
        if (!registration->over.load(std::memory_order_acquire)) {
            return false;
        }
        registration->mr.reset();
        registration->region = {};
        return true;
    });
    return registrations_.empty();
}

void AttachedClient::runtime_stops() noexcept {
    cancel_registrations();
    while (!registers_nothing()) {
        runtime_.platform->sleep(1ms);
    }
}

// ---- Its end ----

std::vector<AttachedClient::Retiring> AttachedClient::retire(const std::vector<QpHandle>& handles, std::chrono::milliseconds within) {
    std::vector<Retiring> ends;
    const Clock::time_point deadline = runtime_.platform->now() + within;
    for (const QpHandle handle : handles) {
        attempt("a queue pair", [&] {
            ends.push_back({handle, runtime_.begin_retiring_here(handle, deadline), std::nullopt});
            if (const auto own = qps_.find(handle); own != qps_.end()) {
                own->second.busy = true;
            }
        });
    }
    return ends;
}

bool AttachedClient::all_retired(std::vector<Retiring>& ends) noexcept {
    bool all = true;
    for (Retiring& end : ends) {
        if (end.drained) {
            continue;
        }
        try {
            end.drained = end.retirement ? runtime_.retired_here(*end.retirement) : std::optional(true);
        } catch (const std::exception& error) {
            const auto* known = dynamic_cast<const Error*>(&error);
            if (known == nullptr || known->code() != std::errc::resource_unavailable_try_again) {
                log_error("client {}: a queue pair is not drained: {}", number_, error.what());
                end.drained = false;
            }
        }
        if (!end.drained) {
            all = false;
            continue;
        }
        const auto own = qps_.find(end.handle);
        if (own != qps_.end()) {
            own->second.busy = false;
        }
        attempt("a queue pair", [&] {
            runtime_.end_retired_here(end.handle, *end.drained);
            forget_qp(end.handle);
        });
    }
    return all;
}

std::vector<QpHandle> AttachedClient::qps_of(std::uint32_t session) const {
    std::vector<QpHandle> its;
    for (const auto& [handle, own] : qps_) {
        if (own.sessions.contains(session)) {
            its.push_back(handle);
        }
    }
    return its;
}

void AttachedClient::begin(std::uint64_t id, const wire::Detach&) {
    end(runtime_.config.drain_timeout, false, [this, id](bool whole) { reply<wire::Detach>(id, {.whole = whole}); });
}

void AttachedClient::end(std::chrono::milliseconds drain, bool abandoned, std::function<void(bool whole)> done) {
    ending_ = true;
    later_.clear();  // who waits for these waits no more, or will be told that it has ended
    cancel_registrations();
    // Queue pairs first, all at a time.
    const auto ends = std::make_shared<std::vector<Retiring>>();
    later_.push_back({.over =
                          [this, abandoned, done = std::move(done), ends](Clock::time_point) {
                              const bool retired = all_retired(*ends);
                              if (!registers_nothing() || !retired) {
                                  return false;
                              }
                              close_resources(abandoned);
                              whole_ = std::all_of(ends->begin(), ends->end(), [](const Retiring& end) { return *end.drained; });
                              ended_ = true;
                              done(whole_);
                              return true;
                          },
                      .next = {}});
    log_refusals();
    for (const auto& [device, listener] : listeners_) {
        runtime_.stop_listening(device, listener);
    }
    listeners_.clear();
    for (const auto& [request, flow] : requests_) {
        runtime_.reject(request.first, request.second, {});
    }
    requests_.clear();
    std::vector<QpHandle> all;
    for (const auto& [handle, own] : qps_) {
        all.push_back(handle);
    }
    *ends = retire(all, drain);
}

// What one of them cannot do must not keep the others from ending.
template <class F>
void AttachedClient::attempt(const char* what, F&& step) noexcept {
    try {
        step();
    } catch (const std::exception& error) {
        log_error("client {}: {} does not end: {}", number_, what, error.what());
    }
}

void AttachedClient::close_resources(bool abandoned) noexcept {
    const auto deadline = runtime_.platform->now();
    for (const std::uint32_t id : sessions_) {
        attempt("a session", [&] { (void)runtime_.close_session_here(id, deadline, abandoned); });
    }
    for (const auto& [handle, own] : srqs_) {
        attempt("a shared receive queue", [&, srq = handle] { runtime_.close_srq(srq); });
    }
    for (const auto& [handle, own] : pools_) {
        attempt("a receive pool", [&, pool = handle, region = own.region] {
            runtime_.close_pool(pool, region);
            regions_.erase(region);
        });
    }
    for (const MwHandle handle : windows_) {
        attempt("a memory window", [&] { runtime_.deallocate(handle); });
    }
    for (const AhHandle handle : ahs_) {
        attempt("an address handle", [&] { runtime_.destroy_ah(handle); });
    }
    for (auto region = regions_.begin(); region != regions_.end();) {
        bool over = false;
        attempt("a memory region", [&] {
            runtime_.deregister(region->first);
            over = true;
        });
        // What is registered stays mapped: the device may reach it.
        region = over ? regions_.erase(region) : std::next(region);
    }
    for (const PdId pd : pds_) {
        runtime_.release_pd(pd);
    }
    for (const auto& [device, pd] : default_pds_) {
        runtime_.release_pd(pd);
    }
    for (const std::uint32_t id : sessions_) {
        runtime_.release_session(id);
    }
    for (const auto& [id, region] : regions_) {
        runtime_.keep_mapped(region.memory);
    }
    sessions_.clear();
    qps_.clear();
    srqs_.clear();
    pools_.clear();
    windows_.clear();
    ahs_.clear();
    regions_.clear();
    pds_.clear();
    default_pds_.clear();
}

}  // namespace pollcore
