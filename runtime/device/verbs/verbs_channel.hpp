// A completion channel of a verbs device.
#pragma once

#include "device/completion_channel.hpp"

namespace pollcore {

class VerbsChannel final : public CompletionChannel {
public:
    /// Makes the channel non-blocking. Throws Error.
    explicit VerbsChannel(ibv_context* context);
    ~VerbsChannel() override;

    [[nodiscard]] ibv_comp_channel* verbs() noexcept override { return channel_; }
    [[nodiscard]] int fd() const noexcept override { return channel_->fd; }
    [[nodiscard]] int next_event(ibv_cq*& cq) noexcept override;
    void acknowledge(ibv_cq& cq, std::uint32_t events) noexcept override { ibv_ack_cq_events(&cq, events); }

private:
    ibv_comp_channel* channel_ = nullptr;
};

}  // namespace pollcore
