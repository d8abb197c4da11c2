// Send pools: claiming and committing, and how buffers come back.
#include "pollcore/send_pool.hpp"

#include <utility>
#include <vector>

#include "session/send_pool_core.hpp"
#include "session/session_core.hpp"

namespace pollcore {

// ---- The session's part ----

void SessionCore::add_send_pool(std::shared_ptr<SendPoolCore> pool) {
    send_pools_.push_back(std::move(pool));
    attention_ |= kSendPools;
}

// Gives buffers back, and leaves only the completions that the program is to see. Returns their number.
template <class Record>
std::size_t SessionCore::take_back(std::span<Record> taken) noexcept {
    std::size_t kept = 0;
    for (Record& completion : taken) {
        auto how = SendPoolCore::Taken::no;
        for (auto pool = send_pools_.begin(); pool != send_pools_.end() && how == SendPoolCore::Taken::no; ++pool) {
            how = (*pool)->take_back(completion);
        }
        if (how != SendPoolCore::Taken::quietly) {
            if (&taken[kept] != &completion) {
                taken[kept] = completion;
            }
            ++kept;
        }
    }
    std::erase_if(send_pools_, [](const auto& pool) { return pool->abandoned && pool->in_flight() == 0; });
    if (send_pools_.empty()) {
        attention_ &= static_cast<std::uint8_t>(~kSendPools);
    }
    return kept;
}
template std::size_t SessionCore::take_back(std::span<Completion> taken) noexcept;
template std::size_t SessionCore::take_back(std::span<WideCompletion> taken) noexcept;

void SessionCore::leave_send_pools() noexcept {
    for (const auto& pool : send_pools_) {
        pool->session = nullptr;
    }
}

// ---- The calls of SendPool ----

SendClaim::~SendClaim() {
    if (core_ != nullptr) {
        core_->put_back(buffer_);
    }
}

SendPool::SendPool(std::shared_ptr<SendPoolCore> core) noexcept : core_(std::move(core)) {}

SendPool::~SendPool() {
    if (core_ != nullptr) {
        core_->abandoned = true;
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
    if (core_ == nullptr || claim.core_ != core_ || core_->session == nullptr) {
        return Refusal::session_closed;
    }
    if (!allows(kInlineOpcodes, request.opcode)) {  // these are the opcodes that send bytes of this side
        return Refusal::bad_opcode;
    }
    const auto length = static_cast<std::uint32_t>(claim.payload_.size());
    const Refusal refusal = core_->session->submit_of_pool(core_->with_buffer(request, claim.buffer_, length));
    if (refusal == Refusal::none) {
        core_->count_sent();
        claim.core_.reset();
        claim.payload_ = {};
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
