// Copies the SGEs or the inline payload of a request, from its slot and its continuation slots, into the worker's own
// memory.
//
// `slots`, of type Slots, is the ring that holds the request at `slot`: a session's submission ring, or
// WaitingRequests.
//
// Thread safety: only the worker's thread uses it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <infiniband/verbs.h>

#include "pollcore/work_request.hpp"
#include "session/request_head.hpp"
#include "worker/chains.hpp"

namespace pollcore {

static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, addr) == offsetof(ibv_sge, addr) &&
              offsetof(Sge, length) == offsetof(ibv_sge, length) && offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));

/// Copies the first SGE from the request's line, and the other SGEs from its continuations.
template <class Slots>
[[gnu::always_inline]] inline std::span<ibv_sge> gather(Chains& chains, const WorkRequest& request, const Slots& slots,
                                                        std::size_t slot) noexcept {
    const std::size_t n = request.num_sge;
    ibv_sge* const to = chains.take_sges(n);
    if (n > 0) {
        *to = {.addr = request.sge.addr, .length = request.sge.length, .lkey = request.sge.lkey};
    }
    for (std::size_t next = 1; next < n;) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(++slot));
        const std::size_t here = std::min(WorkRequestContinuation::kSges, n - next);
        std::memcpy(&to[next], more.payload.data(), here * sizeof(Sge));
        next += here;
    }
    return {to, n};
}

template <class Slots>
[[gnu::noinline]] void gather_payload(const Slots& slots, std::size_t slot, std::span<std::byte> to) noexcept {
    for (std::size_t at = 0; at < to.size();) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(++slot));
        const std::size_t here = std::min(WorkRequestContinuation::kPayload, to.size() - at);
        std::memcpy(&to[at], more.payload.data(), here);
        at += here;
    }
}

/// Bytes that an inline payload of `length` occupies in the chains' memory.
[[nodiscard]] constexpr std::size_t inline_room(std::uint32_t length) noexcept {
    constexpr std::size_t kPiece = WorkRequest::kOwnPayload;
    return std::max((length + kPiece - 1) / kPiece * kPiece,
                    kPiece);  // a shorter payload is also written as kPiece bytes
}

/// Copies an inline payload, which occupies `room` bytes of the chains' memory.
template <class Slots>
[[gnu::always_inline]] inline ibv_sge* gather_inline(Chains& chains, const WorkRequest& request, const Slots& slots,
                                                     std::size_t slot, std::size_t room) noexcept {
    std::byte* const bytes = chains.take_inline(room);
    const std::uint32_t length = request.sge.length;
    if (length <= WorkRequest::kOwnPayload) {
        // Copies two whole words, even if `length` is smaller, so that each word is read as it was written (D10).
        std::memcpy(bytes, &request.swap, sizeof(request.swap));
        std::memcpy(bytes + sizeof(request.swap), &request.sge.addr, sizeof(request.sge.addr));
    } else {
        gather_payload(slots, slot, {bytes, length});
    }
    ibv_sge* const sge = chains.take_sges(1);
    *sge = {.addr = reinterpret_cast<std::uintptr_t>(bytes), .length = length, .lkey = 0};
    return sge;
}

template <class Slots>
[[nodiscard]] [[gnu::noinline]] std::uint64_t gathered_length(const WorkRequest& request, const Slots& slots,
                                                              std::size_t slot) noexcept {
    std::uint64_t length = request.sge.length;
    for (std::size_t next = 1; next < request.num_sge;) {
        const auto more = std::bit_cast<WorkRequestContinuation>(slots.copy(++slot));
        for (std::size_t i = 0; i < WorkRequestContinuation::kSges && next < request.num_sge; ++i, ++next) {
            Sge sge;
            std::memcpy(&sge, more.payload.data() + i * sizeof(Sge), sizeof(sge));
            length += sge.length;
        }
    }
    return length;
}
/// The length of a request's message, in bytes.
template <class Slots>
[[nodiscard]] std::uint64_t message_length(const WorkRequest& request, const Slots& slots, std::size_t slot) noexcept {
    if ((request.flags & kInline) != 0 || request.num_sge == 1) [[likely]] {
        return request.sge.length;
    }
    return request.num_sge == 0 ? 0 : gathered_length(request, slots, slot);
}

}  // namespace pollcore
