// A receive pool: registered buffers of equal size, which a worker posts to keep receive queues filled.
//
//     #include <pollcore/runtime.hpp>
//
//     // Calls `use` for each message that was received, and gives the message's buffer back.
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
// The worker posts the receives of the queue pairs and shared receive queues that name the pool; the application posts
// none. When few receives are left, the worker posts new ones, several with one doorbell. Each message completes a
// receive. The completion (kPooled) names the buffer, which belongs to the application until Session::release. Buffers
// may be released in any order.
//
// When a queue pair that names the pool fails or is closed, its receives go back to the pool without completions,
// except for one. This last completion has the status that ended the queue pair, and names a buffer without a message.
// The application releases this buffer like any other. If the application holds all buffers of the queue pair's share,
// the last completion comes after a buffer is released. It does not come if the queue pair is reset or closed before
// that. A queue pair on a shared receive queue has no such last completion.
//
// A queue pair has at most its share of the buffers, whether they are posted or held by the application. So if the
// buffers of a queue pair are never released, that queue pair stops receiving, and other queue pairs are not affected.
//
// A write ring is a pool whose messages arrive without receives (FlowControl::ring). The peer writes them into the ring
// one after the other, and each message takes only the room that it needs. The rules for buffers hold for the messages
// of a write ring, too, with two differences: a write ring has one queue pair at a time, and a message that is not
// released also keeps the room of the messages behind it.
//
// Thread safety: any thread may make any call. No other call may be made during close(), and what counters() has
// returned is valid until then.
// Ownership: the pool owns the memory until the pool is closed, even if its session or the runtime ends before that.
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

/// The options of a receive pool.
struct ReceivePoolOptions {
    std::string device{};                  ///< name from the configuration; empty: the only device
    const ProtectionDomain* pd = nullptr;  ///< protection domain of its queue pairs; null: the device's default domain
    /// The session that gets the messages and releases the buffers. The session's SessionOptions::pool_buffers must
    /// have room for the buffers of all its pools.
    Session* session = nullptr;
    std::uint32_t buffers = 256;
    std::uint32_t buffer_bytes = 4096;  ///< bytes of the longest message; 40 fewer for a datagram (kGrhBytes)
    // Where the buffers lie, for a program that passes payloads on by pages, as to a file with O_DIRECT (open(2)). A
    // payload behind a header of H bytes begins at a page if first_byte is 4096 - H and stride is a multiple of 4096.
    /// Offset of the first buffer from the beginning of a page of 4096 bytes.
    std::uint32_t first_byte = 0;
    /// Bytes from one buffer to the next: a multiple of kCacheLine, so large that no two buffers share a cache line. 0
    /// means the smallest such number.
    std::uint32_t stride = 0;
};

/// The options of a write ring.
struct WriteRingOptions {
    std::string device{};                  ///< name from the configuration; empty: the only device
    const ProtectionDomain* pd = nullptr;  ///< protection domain of its queue pair; null: the device's default domain
    /// The session that gets the messages and releases them. The session's SessionOptions::pool_buffers must have room
    /// for `messages` + 1 of each of its rings.
    Session* session = nullptr;
    /// A power of two, from 4 KiB to 1 GiB. The longest message, together with 24 bytes that the runtime adds, takes a
    /// quarter of the ring.
    std::uint32_t bytes = 1u << 20;
    std::uint32_t messages = 256;  ///< messages that the application may hold unreleased; others wait in the ring
};

/// A buffer that the application has not released.
struct HeldBuffer {
    std::uint32_t buffer = 0;
    QpHandle qp{};            ///< the queue pair that received the buffer's message
    std::uint32_t later = 0;  ///< number of messages that the pool has delivered after this buffer's message
};

/// A receive pool or write ring. Move-only. QueuePairOptions::pool and SharedReceiveQueueOptions::pool name it.
class POLLCORE_API ReceivePool {
public:
    ReceivePool() = default;
    /// Made by Context.
    POLLCORE_INTERNAL ReceivePool(std::shared_ptr<ControlSide> control, const PoolInfo& made, const PoolSpec& spec,
                                  std::byte* data, std::uint32_t message_max) noexcept;
    ~ReceivePool();
    ReceivePool(ReceivePool&& other) noexcept;
    ReceivePool& operator=(ReceivePool&& other) noexcept;

    [[nodiscard]] PoolHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }
    /// The number of buffers. For a write ring, the number of messages that the application may hold.
    [[nodiscard]] std::uint32_t buffers() const noexcept { return buffers_; }
    /// The longest message, in bytes.
    [[nodiscard]] std::uint32_t buffer_bytes() const noexcept { return buffer_bytes_; }
    /// The whole of a buffer; empty for a write ring, which has no buffers.
    [[nodiscard]] std::span<std::byte> buffer(std::uint32_t index) const noexcept {
        return ring_ ? std::span<std::byte>{} : std::span(data_ + std::size_t{index} * stride_, buffer_bytes_);
    }
    /// The message of a completion; empty if the completion failed or belongs to another pool. A message in a write
    /// ring begins at an offset that is a multiple of 8.
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

    /// After close(), these are all 0.
    [[nodiscard]] const ReceivePoolCounters& counters() const noexcept {
        static const ReceivePoolCounters none;
        return counters_ != nullptr ? *counters_ : none;
    }
    /// The buffers that the application holds now. A large HeldBuffer::later is a sign of a buffer that the application
    /// forgot to release.
    [[nodiscard]] std::vector<HeldBuffer> held() const;

    /// Ends the pool and its memory, including the buffers that the application holds. The pool's places among the
    /// session's pool_buffers become free later: when the session has polled the last completion of the pool, and has
    /// then submitted or released something. Throws Error(EBUSY), and changes nothing, while queue pairs or shared
    /// receive queues use the pool. The destructor does the same. A pool that is in use then ends later.
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
