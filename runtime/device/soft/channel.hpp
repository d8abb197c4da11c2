// A completion channel of the software device. It holds the events of the CQs of one engine, and wakes the thread that
// moves this engine.
//
// Thread safety: raise() and forget() are called under the engine's lock. The other functions take this lock.
// Invariant: a CQ with events that nobody has taken is exactly once in the list that begins at first_raised_.
#pragma once

#include <cstdint>
#include <memory>

#include <infiniband/verbs.h>

#include "device/completion_channel.hpp"

namespace pollcore::soft {

class Engine;
struct SoftCq;

class Channel : public ibv_comp_channel, public std::enable_shared_from_this<Channel> {
public:
    /// Opens the engine's doorbell. Throws Error.
    Channel(ibv_context* of, std::shared_ptr<Engine> engine);
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    [[nodiscard]] const Engine& engine() const noexcept { return *engine_; }

    /// Raises an event, and disarms the CQ.
    void raise(SoftCq& cq) noexcept;
    /// Drops the events of the CQ that nobody has taken.
    void forget(SoftCq& cq) noexcept;

    [[nodiscard]] int next_event(ibv_cq*& cq) noexcept;
    void acknowledge(ibv_cq& cq, std::uint32_t events) noexcept;
    [[nodiscard]] std::uint64_t look_again_ns() noexcept;
    void awake() noexcept;

private:
    void list(SoftCq& cq) noexcept;
    void unlist(SoftCq& cq) noexcept;

    std::shared_ptr<Engine> engine_;
    // List of CQs with events that nobody has taken, linked by SoftCq::next_raised. Each CQ is in it once.
    SoftCq* first_raised_ = nullptr;
    SoftCq** behind_raised_ = &first_raised_;
};

/// The handle by which a sleeping thread uses a Channel. The thread and the CQs share the Channel.
class SoftCompletionChannel final : public CompletionChannel {
public:
    explicit SoftCompletionChannel(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

    [[nodiscard]] ibv_comp_channel* verbs() noexcept override { return channel_.get(); }
    [[nodiscard]] int fd() const noexcept override { return channel_->fd; }
    [[nodiscard]] int next_event(ibv_cq*& cq) noexcept override { return channel_->next_event(cq); }
    void acknowledge(ibv_cq& cq, std::uint32_t events) noexcept override { channel_->acknowledge(cq, events); }
    [[nodiscard]] std::uint64_t look_again_ns() noexcept override { return channel_->look_again_ns(); }
    void awake() noexcept override { channel_->awake(); }

private:
    std::shared_ptr<Channel> channel_;
};

}  // namespace pollcore::soft
