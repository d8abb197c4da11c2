// The buffers of a send pool, and which of them are in flight. The session that submits the requests gives the buffers
// back when it polls (SessionCore::take_back).
//
// Thread safety: only the session's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pollcore/completion.hpp"
#include "pollcore/memory.hpp"
#include "pollcore/work_request.hpp"

namespace pollcore {

class SessionCore;

class SendPoolCore {
public:
    /// Throws std::bad_alloc.
    SendPoolCore(SessionCore& its_session, MemoryRegion memory, std::uint32_t buffers, std::uint32_t buffer_bytes,
                 std::uint32_t stride)
        : session_(&its_session),
          memory_(std::move(memory)),
          buffer_bytes_(buffer_bytes),
          stride_(stride),
          sent_(buffers) {
        free_.reserve(buffers);
        for (std::uint32_t buffer = buffers; buffer > 0; --buffer) {
            free_.push_back(buffer - 1);
        }
    }

    [[nodiscard]] std::uint32_t buffers() const noexcept { return static_cast<std::uint32_t>(sent_.size()); }
    [[nodiscard]] std::uint32_t buffer_bytes() const noexcept { return buffer_bytes_; }
    [[nodiscard]] std::uint32_t free() const noexcept { return static_cast<std::uint32_t>(free_.size()); }
    [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }

    /// Must not be called when no buffer is free.
    [[nodiscard]] std::uint32_t take() noexcept {
        const std::uint32_t buffer = free_.back();
        free_.pop_back();
        return buffer;
    }
    void put_back(std::uint32_t buffer) noexcept { free_.push_back(buffer); }
    [[nodiscard]] std::span<std::byte> bytes(std::uint32_t buffer, std::uint32_t length) const noexcept {
        return {memory_.data() + std::size_t{buffer} * stride_, length};
    }

    /// The request as it is submitted: with the buffer, and with a tag that names it.
    [[nodiscard]] WorkRequest with_buffer(const WorkRequest& request, std::uint32_t buffer,
                                          std::uint32_t length) noexcept {
        Sent& sent = sent_[buffer];
        sent = {.tag = request.tag, .told = (request.flags & kSignaled) != 0};
        WorkRequest made = request;
        made.tag = reinterpret_cast<std::uintptr_t>(&sent);
        made.sge = memory_.sge(std::size_t{buffer} * stride_, length);
        made.num_sge = 1;
        made.flags |= kSignaled;
        return made;
    }
    void count_sent() noexcept { ++in_flight_; }

    /// If the completion is that of a buffer of this pool, gives the buffer back. `completion` then has the program's
    /// tag.
    enum class Taken : std::uint8_t {
        no,
        quietly,  ///< the program does not want to see the completion
        told,
    };
    [[nodiscard]] Taken take_back(Completion& completion) noexcept {
        const std::uint64_t offset = completion.tag - reinterpret_cast<std::uintptr_t>(sent_.data());
        if (offset >= sent_.size() * sizeof(Sent) || offset % sizeof(Sent) != 0 || completion.from_recv_queue()) {
            return Taken::no;
        }
        const auto buffer = static_cast<std::uint32_t>(offset / sizeof(Sent));
        const Sent& sent = sent_[buffer];
        completion.tag = sent.tag;
        put_back(buffer);
        --in_flight_;
        return completion.ok() && !sent.told ? Taken::quietly : Taken::told;
    }

    /// Null after the session's end.
    [[nodiscard]] SessionCore* session() const noexcept { return session_; }
    /// Called when the session is destroyed.
    void leave_session() noexcept { session_ = nullptr; }
    /// Called when the program has destroyed its SendPool.
    void abandon() noexcept { abandoned_ = true; }
    /// Whether nobody needs the memory any more.
    [[nodiscard]] bool may_go() const noexcept { return abandoned_ && in_flight_ == 0; }

private:
    /// What the program has said of a buffer's request.
    struct Sent {
        std::uint64_t tag = 0;
        bool told = false;  ///< the program wants the completion
    };

    SessionCore* session_;
    bool abandoned_ = false;
    MemoryRegion memory_;
    std::uint32_t buffer_bytes_;
    std::uint32_t stride_;
    std::vector<Sent> sent_;  // by buffer; the addresses of its elements are the tags of the requests
    std::vector<std::uint32_t> free_;
    std::uint32_t in_flight_ = 0;
};

}  // namespace pollcore
