// The calls of SendPool and SendClaim.
#include <utility>

#include "pollcore/send_pool.hpp"
#include "session/send_pool_core.hpp"
#include "session/session_core.hpp"

namespace pollcore {

SendClaim::~SendClaim() {
    if (core_ != nullptr) {
        core_->put_back(buffer_);
    }
}

SendClaim::SendClaim(std::shared_ptr<SendPoolCore> core, std::span<std::byte> payload, std::uint32_t buffer) noexcept
    : core_(std::move(core)), payload_(payload), buffer_(buffer) {}

void SendClaim::commit() noexcept {
    core_.reset();
    payload_ = {};
}

SendPool::SendPool(std::shared_ptr<SendPoolCore> core) noexcept : core_(std::move(core)) {}

SendPool::~SendPool() {
    if (core_ == nullptr) {
        return;
    }
    core_->abandon();
    if (SessionCore* session = core_->session(); session != nullptr) {
        session->drop_send_pools();
    }
}

SendPool& SendPool::operator=(SendPool&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
}

SendClaim SendPool::claim(std::uint32_t bytes) noexcept {
    if (core_ == nullptr || bytes > core_->buffer_bytes() || core_->free() == 0) {
        return {};
    }
    const std::uint32_t buffer = core_->take();
    return {core_, core_->bytes(buffer, bytes), buffer};
}

Refusal SendPool::commit(SendClaim& claim, const WorkRequest& request) noexcept {
    if (core_ == nullptr || !claim.is_of(core_.get()) || core_->session() == nullptr) {
        return Refusal::session_closed;
    }
    if (!allows(kInlineOpcodes, request.opcode)) {  // these are the opcodes that send bytes of this side
        return Refusal::bad_opcode;
    }
    const auto length = static_cast<std::uint32_t>(claim.payload().size());
    const Refusal refusal = core_->session()->submit_of_pool(core_->with_buffer(request, claim.buffer(), length));
    if (refusal == Refusal::none) {
        core_->count_sent();
        claim.commit();
    }
    return refusal;
}

std::uint32_t SendPool::buffers() const noexcept {
    return core_ != nullptr ? core_->buffers() : 0;
}
std::uint32_t SendPool::buffer_bytes() const noexcept {
    return core_ != nullptr ? core_->buffer_bytes() : 0;
}
std::uint32_t SendPool::free() const noexcept {
    return core_ != nullptr ? core_->free() : 0;
}

}  // namespace pollcore
