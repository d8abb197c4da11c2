// A receive pool: equal buffers of registered memory, with which a worker keeps receive queues filled.
//
//     #include <pollcore/runtime.hpp>
//
//     // Gives each message that has come to `use`, and its buffer back.
//     template <class Use>
//     void take(pollcore::Session& session, pollcore::ReceivePool& pool, Use use) {
//         pollcore::Completion completion;
//         while (session.poll({&completion, 1}) != 0) {
//             if (completion.ok()) {
//                 use(pool.message(completion));
//             }
//             (void)session.release(completion);
//         }
//     }
//
// The worker posts the receives of the queue pairs and shared receive queues that name the pool, and posts new ones,
// several with one doorbell, when few are left. The application posts none. Each message completes a receive. Its
// completion (kPooled) names the buffer, which belongs to the application until Session::release. Buffers may be
// released in any order.
//
// When such a queue pair fails or is closed, its receives go back to the pool without completions, except for one. This
// last completion has the status that ended the queue pair, and a buffer without a message, which is released as any
// other. If the application holds all buffers of the queue pair's share, the last completion comes after one is
// released, unless the queue pair is reset or closed before. A queue pair on a shared receive queue has no such
// completion.
//
// A queue pair holds no more than its share of the buffers, posted or with the application. So a queue pair whose
// buffers are never released stops receiving, and others do not notice.
//
// A write ring is a pool whose messages arrive without receives (FlowControl::ring): the peer writes them into the ring
// one after the other, each in as much room as it needs. What is said here of buffers holds for its messages, with two
// differences: a write ring has one queue pair at a time, and a message that is not released also keeps the room of the
// messages behind it.
//
// Thread safety: control calls; from any thread. message(), buffer(), counters() and held() may be called at any time.
// Ownership: the pool owns the memory and keeps it until the pool is closed, even if its session or the runtime ends
// before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pollcore/completion.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/export.h"
#include "pollcore/handle.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

class ProtectionDomain;
class ControlSide;
struct PoolInfo;
struct PoolSpec;
class Session;

/// What a receive pool is made of.
struct ReceivePoolOptions {
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< protection domain of its queue pairs; null: the device's default
    /// Gets the messages and releases the buffers. Its SessionOptions::pool_buffers must have room for all its pools.
    Session* session = nullptr;
    std::uint32_t buffers = 256;
    std::uint32_t buffer_bytes = 4096;  ///< the longest message; for datagrams 40 bytes less (kGrhBytes)
};

/// What a write ring is made of.
struct WriteRingOptions {
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< protection domain of its queue pair; null: the device's default
    /// Gets the messages and releases them. Its SessionOptions::pool_buffers must have room for `messages` + 1 for each
    /// ring.
    Session* session = nullptr;
    /// A power of two, from 4 KiB to 1 GiB. The longest message, with 24 bytes of the runtime's, takes a quarter of it.
    std::uint32_t bytes = 1u << 20;
    std::uint32_t messages = 256;  ///< messages that the application may hold unreleased; others wait in the ring
};

/// A buffer that the application has not released.
struct HeldBuffer {
    std::uint32_t buffer = 0;
    QpHandle qp{};            ///< the queue pair that received the message
    std::uint32_t later = 0;  ///< messages that the pool has delivered since then
};

/// A receive pool or write ring. Move-only. QueuePairOptions::pool and SharedReceiveQueueOptions::pool name it.
class POLLCORE_API ReceivePool {
public:
    ReceivePool() = default;
    /// Made by Context.
    POLLCORE_INTERNAL ReceivePool(std::shared_ptr<ControlSide> control, const PoolInfo& made, const PoolSpec& spec,
                                  std::byte* data, std::uint32_t message_max, std::uint32_t stride) noexcept;
    ~ReceivePool();
    ReceivePool(ReceivePool&& other) noexcept;
    ReceivePool& operator=(ReceivePool&& other) noexcept;

    [[nodiscard]] PoolHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }
    /// Number of buffers; for a write ring, of messages that the application may hold.
    [[nodiscard]] std::uint32_t buffers() const noexcept { return buffers_; }
    /// The longest message, in bytes.
    [[nodiscard]] std::uint32_t buffer_bytes() const noexcept { return buffer_bytes_; }
    /// The whole of a buffer; empty for a write ring, which has no buffers.
    [[nodiscard]] std::span<std::byte> buffer(std::uint32_t index) const noexcept {
        return ring_ ? std::span<std::byte>{} : std::span(data_ + std::size_t{index} * stride_, buffer_bytes_);
    }
    /// The message of a completion; empty when the completion failed or is of another pool. In a write ring it begins
    /// at a multiple of 8.
    [[nodiscard]] std::span<std::byte> message(const Completion& completion) const noexcept {
        if (!completion.ok() || !completion.pooled() || completion.pool() != handle_) {
            return {};
        }
        if (ring_) {
            const std::size_t end = (std::size_t{completion.buffer()} + 1) * kCacheLine;
            return {data_ + end - record_bytes(completion.byte_len), completion.byte_len};
        }
        return buffer(completion.buffer()).subspan(completion.payload_offset(), completion.payload_length());
    }

    [[nodiscard]] const ReceivePoolCounters& counters() const noexcept { return *counters_; }
    /// The buffers that the application holds now. A buffer that was forgotten has a large HeldBuffer::later.
    [[nodiscard]] std::vector<HeldBuffer> held() const;

    /// Ends the pool and its memory, including the buffers that the application holds. Its places among the session's
    /// pool_buffers become free when the session has polled its last completion and then submits or releases something.
    /// Throws Error(EBUSY), and changes nothing, while queue pairs or shared receive queues use the pool. The
    /// destructor does the same, except that it leaves a pool in use to the runtime.
    void close();

private:
    std::shared_ptr<ControlSide> control_;
    PoolHandle handle_{};
    std::uint64_t region_ = 0;
    std::byte* data_ = nullptr;
    std::uint32_t buffers_ = 0;
    std::uint32_t buffer_bytes_ = 0;
    std::uint32_t stride_ = 0;
    bool ring_ = false;
    const ReceivePoolCounters* counters_ = nullptr;
};

}  // namespace pollcore
