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
// several with one doorbell, when few are left. The application posts none. Each message completes a receive: its
// completion (kPooled) names the buffer, which is the application's until Session::release, in any order.
//
// When such a queue pair fails or is closed, its receives go back to the pool without a word, but for one: the last
// completion of its life has the status of what ended it, and a buffer, without a message, that is released as any
// other. Where the application holds every buffer that the queue pair may have, it comes after one was released, unless
// the queue pair was reset or closed before. A queue pair on a shared receive queue has no such completion.
//
// A queue pair holds no more than its share of the buffers, posted or with the application. So one whose buffers are
// never released stops receiving, and the others do not notice.
//
// A write ring is a pool whose messages arrive without receives (FlowControl::ring): the peer writes them one after the
// other into the ring, in the room that each needs. All that is said here of buffers holds for them, but that there is
// one queue pair at a time, and that a message which is not released keeps the room of those behind it, too.
//
// Thread safety: control calls; from any thread. message(), buffer(), counters() and held() may be called at any time.
// Ownership: the memory is the pool's. It stays until the pool is closed, also when its session or the runtime ended
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

struct ReceivePoolOptions {
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< of its queue pairs; null: the device's default
    /// Gets the messages and releases the buffers. SessionOptions::pool_buffers has room for all its pools.
    Session* session = nullptr;
    std::uint32_t buffers = 256;
    std::uint32_t buffer_bytes = 4096;  ///< the longest message; of datagrams 40 bytes less (kGrhBytes)
};

struct WriteRingOptions {
    std::string device{};                  ///< name from the configuration; empty: the only one
    const ProtectionDomain* pd = nullptr;  ///< of its queue pair; null: the device's default
    /// Gets the messages and releases them. SessionOptions::pool_buffers has room for `messages` of each ring, and one
    /// more.
    Session* session = nullptr;
    /// A power of two, from 4 KiB to 1 GiB. The longest message takes a quarter of it, with 24 bytes of the runtime's.
    std::uint32_t bytes = 1u << 20;
    std::uint32_t messages = 256;  ///< that the application may have, unreleased. The others wait in the ring
};

/// A buffer that the application has not released.
struct HeldBuffer {
    std::uint32_t buffer = 0;
    QpHandle qp{};            ///< the queue pair that received the message
    std::uint32_t later = 0;  ///< messages that the pool has delivered since then
};

/// Move-only. Named by QueuePairOptions::pool and SharedReceiveQueueOptions::pool.
class POLLCORE_API ReceivePool {
public:
    ReceivePool() = default;
    /// By Context.
    POLLCORE_INTERNAL ReceivePool(std::shared_ptr<ControlSide> control, const PoolInfo& made, const PoolSpec& spec,
                                  std::byte* data, std::uint32_t message_max, std::uint32_t stride) noexcept;
    ~ReceivePool();
    ReceivePool(ReceivePool&& other) noexcept;
    ReceivePool& operator=(ReceivePool&& other) noexcept;

    [[nodiscard]] PoolHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }
    /// Messages of a write ring that the application may have.
    [[nodiscard]] std::uint32_t buffers() const noexcept { return buffers_; }
    /// The longest message.
    [[nodiscard]] std::uint32_t buffer_bytes() const noexcept { return buffer_bytes_; }
    /// The whole of a buffer. Of a write ring, which has none, nothing.
    [[nodiscard]] std::span<std::byte> buffer(std::uint32_t index) const noexcept {
        return ring_ ? std::span<std::byte>{} : std::span(data_ + std::size_t{index} * stride_, buffer_bytes_);
    }
    /// What came with a completion; nothing when it is of another pool, or failed. In a write ring it begins at a
    /// multiple of 8.
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
    /// What the application holds now: a buffer that was forgotten is one with many messages later.
    [[nodiscard]] std::vector<HeldBuffer> held() const;

    /// Ends it, with the memory, also of buffers that the application holds. Their places among the session's
    /// pool_buffers are free again when the session has polled its last completion and then submits or releases
    /// something. Throws Error(EBUSY) while queue pairs or shared receive queues use it; nothing has changed then. The
    /// destructor does the same, except that it leaves a pool that is in use to the runtime.
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
