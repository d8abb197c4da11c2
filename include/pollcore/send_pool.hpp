// A send pool: registered buffers for messages to send. The program claims a buffer, writes its message into it, and
// commits it. The buffer goes back to the pool by itself when the request has completed.
//
//     #include <algorithm>
//     #include <string_view>
//
//     #include <pollcore/runtime.hpp>
//
//     // Sends the text, if a buffer is free and the queue pair has room.
//     bool say(pollcore::SendPool& pool, pollcore::QpHandle qp, std::string_view text) {
//         pollcore::SendClaim claim = pool.claim(static_cast<std::uint32_t>(text.size()));
//         if (!claim.valid()) {
//             return false;  // poll the session, and try again
//         }
//         std::copy_n(text.data(), text.size(), reinterpret_cast<char*>(claim.payload().data()));
//         return pool.commit(claim, pollcore::WorkRequest::send(qp, {})) == pollcore::Refusal::none;
//     }
//
// Session::poll takes the completions of the pool's requests. It returns a completion only if the request failed, or if
// the program has set kSignaled, and then with the program's own tag. SessionFigures::completed counts all of them.
//
// The pool tells its completions from others by their tags, which are addresses in the pool. A program's own tags must
// not be addresses in memory of this library.
//
// Thread safety: the thread that uses the session makes all calls, also the destructors, and Context::create_send_pool.
// Ownership: the pool owns the memory. If requests are in flight when the pool is destroyed, the memory stays until the
// session is destroyed, or until their completions were polled and another send pool of the session is made or
// destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"
#include "pollcore/session.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class ProtectionDomain;
class SendPoolCore;

/// The options of a send pool.
struct SendPoolOptions {
    std::string device{};                  ///< name from the configuration; empty: the only device
    const ProtectionDomain* pd = nullptr;  ///< protection domain of the queue pairs; null: the device's default domain
    Session* session = nullptr;            ///< submits the requests
    std::uint32_t buffers = 256;
    std::uint32_t buffer_bytes = 4096;  ///< bytes of the longest message
};

/// A buffer of a send pool, until it is committed. The destructor gives a buffer back that was not committed.
/// Move-only.
class POLLCORE_API SendClaim {
public:
    SendClaim() noexcept = default;
    ~SendClaim();
    SendClaim(SendClaim&& other) noexcept { *this = std::move(other); }
    SendClaim& operator=(SendClaim&& other) noexcept {
        std::swap(core_, other.core_);
        std::swap(payload_, other.payload_);
        std::swap(buffer_, other.buffer_);
        return *this;
    }

    /// False if the pool had no buffer, and after a commit.
    [[nodiscard]] bool valid() const noexcept { return core_ != nullptr; }
    /// Where the message goes. Its length is the length that was claimed.
    [[nodiscard]] std::span<std::byte> payload() const noexcept { return payload_; }

    // For SendPool.
    POLLCORE_INTERNAL SendClaim(std::shared_ptr<SendPoolCore> core, std::span<std::byte> payload,
                                std::uint32_t buffer) noexcept;
    [[nodiscard]] POLLCORE_INTERNAL bool is_of(const SendPoolCore* pool) const noexcept { return core_.get() == pool; }
    [[nodiscard]] POLLCORE_INTERNAL std::uint32_t buffer() const noexcept { return buffer_; }
    POLLCORE_INTERNAL void commit() noexcept;

private:
    std::shared_ptr<SendPoolCore> core_;
    std::span<std::byte> payload_;
    std::uint32_t buffer_ = 0;
};

/// See the top of this file. Move-only.
class POLLCORE_API SendPool {
public:
    SendPool() noexcept = default;
    /// Made by Context.
    POLLCORE_INTERNAL explicit SendPool(std::shared_ptr<SendPoolCore> core) noexcept;
    ~SendPool();
    SendPool(SendPool&&) noexcept = default;
    SendPool& operator=(SendPool&& other) noexcept;

    [[nodiscard]] bool valid() const noexcept { return core_ != nullptr; }
    /// Takes a free buffer for a message of `bytes` bytes. The claim is not valid if no buffer is free: then poll the
    /// session, and try again. It is also not valid if the message is longer than buffer_bytes().
    [[nodiscard]] SendClaim claim(std::uint32_t bytes) noexcept;
    /// Submits `request` with the claimed buffer as its only SGE. The request is a send or an RDMA write; its tag is
    /// the program's own. After Refusal::none the claim is no longer valid. After another refusal it stays valid, and
    /// can be committed again. A claim that is not valid, or of another pool, is refused with session_closed.
    [[nodiscard]] Refusal commit(SendClaim& claim, const WorkRequest& request) noexcept;

    [[nodiscard]] std::uint32_t buffers() const noexcept;
    [[nodiscard]] std::uint32_t buffer_bytes() const noexcept;
    /// Buffers that can be claimed now.
    [[nodiscard]] std::uint32_t free() const noexcept;

private:
    std::shared_ptr<SendPoolCore> core_;
};

}  // namespace pollcore
