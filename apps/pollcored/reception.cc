#include "reception.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "base/log.hpp"

namespace pollcore::daemon {

Reception::Reception(Runtime& runtime, const ServiceConfig& config, ConnectionHandler& handler)
    : runtime_(runtime),
      name_(config.name),
      handler_(handler),
      listener_((runtime.create_queue_pair(handler.queue_pair_options()).close(),
                 runtime.listen(config.address, config.device))),
      address_(listener_.address()),
      slots_(config.connections_max) {}

template <class Line>
void Reception::log_within(LineBudget& budget, Line&& line) {
    if (const std::optional<std::uint64_t> left_out = budget.take(LineBudget::Clock::now())) {
        line(and_others(*left_out));
    }
}

Reception::~Reception() {
    close();
}

void Reception::start() {
    thread_ = std::thread([this] { run(); });
}

void Reception::stop_listening() noexcept {
    Phase serving = Phase::serving;
    phase_.compare_exchange_strong(serving, Phase::draining, std::memory_order_relaxed);
}

bool Reception::close() noexcept {
    phase_.store(Phase::closing, std::memory_order_relaxed);
    if (thread_.joinable()) {
        thread_.join();
    }
    return !cut_short_.load(std::memory_order_relaxed);
}

void Reception::run() noexcept {
    try {
        Phase phase = Phase::serving;
        while ((phase = phase_.load(std::memory_order_relaxed)) != Phase::closing) {
            if (phase == Phase::serving) {
                receive();
            } else {
                if (listening()) {
                    listener_ = Listener();
                    listening_.store(false, std::memory_order_release);
                }
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            reap();
        }
        listener_ = Listener();
        listening_.store(false, std::memory_order_release);
        close_all();
    } catch (const std::exception& error) {
        log_error("{}: no longer serves peers: {}", name_, error.what());
        broken_.store(true, std::memory_order_relaxed);
    }
}

void Reception::receive() {
    std::optional<ConnectionRequest> request = listener_.next_request(kPatience);
    if (!request) {
        return;
    }
    if (!admits_.load(std::memory_order_relaxed)) {
        refuse(*request, fmt::format("{}: the daemon takes no new connections now", name_));
        return;
    }
    reap();  // so that the old connection of a peer that connects again does not make this service full
    const std::optional<std::uint32_t> slot = free_slot();
    if (!slot) {
        refuse(*request, fmt::format("{}: all {} connections (connections_max) are in use", name_, slots_.size()));
        return;
    }
    admit(*request, *slot);
}

void Reception::admit(ConnectionRequest& request, std::uint32_t slot) {
    Slot& place = slots_[slot];
    try {
        place.qp = runtime_.create_queue_pair(handler_.queue_pair_options());
    } catch (const Error& error) {
        refuse(request, fmt::format("{}: no queue pair: {}", name_, error.what()));
        return;
    }
    place.peer = request.peer();
    open_.fetch_add(1, std::memory_order_relaxed);
    handler_.open(slot, place.qp.handle());
    try {
        request.accept(place.qp, handler_.answer());
        log_within(comings_, [&](const std::string& others) {
            log_info("{}: {} connected, queue pair {}; {} of {} connections in use{}", name_, place.peer,
                     place.qp.qp_num(), connections(), slots_.size(), others);
        });
    } catch (const Error& error) {
        log_within(failures_, [&](const std::string& others) {
            log_warning("{}: {} was not connected: {}{}", name_, place.peer, error.what(), others);
        });
        close_slot(slot);
    }
}

void Reception::refuse(ConnectionRequest& request, const std::string& why) {
    log_within(failures_, [&](const std::string& others) {
        log_warning("{}: {} rejected: {}{}", name_, request.peer(), why, others);
    });
    const auto bytes = std::as_bytes(std::span(why));
    const std::size_t length = std::min(bytes.size(), kRejectPrivateDataMax);
    try {
        request.reject({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)});
    } catch (const Error& error) {
        log_within(failures_, [&](const std::string& others) {
            log_warning("{}: {} could not be told: {}{}", name_, request.peer(), error.what(), others);
        });
    }
}

void Reception::reap() {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
        if (!slots_[slot].qp.valid()) {
            continue;
        }
        if (const std::optional<Ending> ending = handler_.ending(slot)) {
            if (ending->failed) {
                log_within(failures_, [&](const std::string& others) {
                    log_warning("{}: connection of {} failed: {}{}", name_, slots_[slot].peer, ending->why, others);
                });
            } else {
                log_within(comings_, [&](const std::string& others) {
                    log_info("{}: {} left: {}{}", name_, slots_[slot].peer, ending->why, others);
                });
            }
            close_slot(slot);
        }
    }
}

void Reception::close_all() {
    // Disconnects all peers before it closes the first queue pair, so that no peer waits for the closing of another.
    for (Slot& place : slots_) {
        if (place.qp.valid()) {
            try {
                place.qp.disconnect();
            } catch (const Error& error) {
                log_warning("{}: {} could not be disconnected: {}", name_, place.peer, error.what());
            }
        }
    }
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].qp.valid()) {
            log_info("{}: closing the connection of {}", name_, slots_[slot].peer);
            close_slot(slot);
        }
    }
}

void Reception::close_slot(std::uint32_t slot) {
    Slot& place = slots_[slot];
    if (!place.qp.close()) {
        cut_short_.store(true, std::memory_order_relaxed);
        log_within(failures_, [&](const std::string& others) {
            log_warning("{}: work in flight for {} did not end within drain_timeout and was cut short{}", name_,
                        place.peer, others);
        });
    }
    place.qp = QueuePair();
    open_.fetch_sub(1, std::memory_order_relaxed);
    handler_.closed(slot);
}

std::optional<std::uint32_t> Reception::free_slot() const {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
        if (!slots_[slot].qp.valid() && handler_.vacant(slot)) {
            return slot;
        }
    }
    return std::nullopt;
}

}  // namespace pollcore::daemon
