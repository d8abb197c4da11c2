// The echo service's start and end, and its functions on the reception's thread.
#include "echo_service.hpp"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "common/service_wire.hpp"

namespace pollcore::daemon {
namespace {

std::uint32_t ring_slots(std::uint64_t wanted) noexcept {
    return static_cast<std::uint32_t>(std::bit_ceil(std::max<std::uint64_t>(wanted, 16)));
}

}  // namespace

EchoService::EchoService(Runtime& runtime, const ServiceConfig& config)
    : Service(config.name),
      config_(config),
      length_max_(static_cast<std::uint32_t>(config.message_size_max)),
      stride_(config.buffer_stride()),
      pd_(runtime.create_protection_domain(config.device)),
      region_(runtime.allocate(config.memory_bytes(), Access::local(), config.device, &pd_)),
      session_(runtime.open_session(
          {.name = config.name,
           .worker = config.worker,
           .submission_slots = ring_slots(std::min<std::uint64_t>(config.messages_max(), kSubmissionSlotsMax)),
           .completion_slots = ring_slots(config.messages_max()),
           .events = true,
           .wait_spin = kSpin})),
      connections_(config.connections_max),
      news_(make_event_fd("an echo service")),
      reception_(runtime, config_, *this) {
    for (Connection& connection : connections_) {
        connection.buffers = std::make_unique<Buffer[]>(config_.depth);
        connection.waiting = std::make_unique<std::uint32_t[]>(config_.depth);
    }
    with_work_.reserve(connections_.size());
}

EchoService::~EchoService() {
    close();
}

std::string EchoService::describe() const {
    return fmt::format("messages of up to {} bytes, {} receives posted for each of at most {} connections",
                       config_.message_size_max, config_.depth, config_.connections_max);
}

void EchoService::start() {
    thread_ = std::thread([this] { run(); });
    reception_.start();
}

void EchoService::begin_drain() noexcept {
    reception_.stop_listening();
    draining_.store(true, std::memory_order_release);
    tell_data_thread();
}

bool EchoService::drained() const noexcept {
    return !reception_.listening() && drained_.load(std::memory_order_acquire);
}

bool EchoService::close() noexcept {
    const bool complete = reception_.close();
    // The data thread ends after the reception, because the reception's open() waits for the data thread.
    stopping_.store(true, std::memory_order_release);
    tell_data_thread();
    if (thread_.joinable()) {
        thread_.join();
    }
    return complete;
}

// Makes the data thread's next wait() return. The data thread then sees all values that were stored before this call.
void EchoService::tell_data_thread() noexcept {
    signal_event(news_.get());
}

// ---- The reception's thread ----

QueuePairOptions EchoService::queue_pair_options() {
    return {.name = config_.name,
            .device = config_.device,
            .pd = &pd_,
            .shares = {{.session = &session_, .send_depth = config_.depth}},
            .recv_depth = config_.depth,
            .flow = config_.flow};
}

ConnectOptions EchoService::answer() {
    const EchoOffer offer{.message_size_max = config_.message_size_max, .depth = config_.depth};
    // rnr_retry 7: repeat without limit when the peer has no receive posted. A slow peer holds up only its own
    // connection, and the ack timeout detects a peer that is gone.
    return {.path = {.rnr_retry = 7}, .private_data = offer.encode(), .timeout = Reception::kAcceptTimeout};
}

void EchoService::open(std::uint32_t slot, QpHandle qp) {
    Connection& connection = connections_[slot];
    connection.qp = qp;
    // Release, pairs with the acquire in take_phases(): from here on the data thread owns the connection.
    connection.phase.store(Phase::opening, std::memory_order_release);
    phases_changed_.fetch_add(1, std::memory_order_release);
    tell_data_thread();
    connection.phase.wait(Phase::opening, std::memory_order_acquire);
}

std::optional<Ending> EchoService::ending(std::uint32_t slot) {
    Connection& connection = connections_[slot];
    // Acquire, pairs with the release in end(), which publishes `ending`.
    if (connection.phase.load(std::memory_order_acquire) != Phase::ended) {
        return std::nullopt;
    }
    return connection.ending;
}

void EchoService::closed(std::uint32_t slot) {
    connections_[slot].phase.store(Phase::closed, std::memory_order_release);
    phases_changed_.fetch_add(1, std::memory_order_release);
    tell_data_thread();
}

bool EchoService::vacant(std::uint32_t slot) const noexcept {
    // Acquire, pairs with the release in vacate_if_done(): the data thread no longer uses the connection.
    return connections_[slot].phase.load(std::memory_order_acquire) == Phase::vacant;
}

}  // namespace pollcore::daemon
