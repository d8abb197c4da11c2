// The contents of messages: what is written before a message is sent and, with --verify, checked after it has arrived.
//
// Thread safety: used by one measuring thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "pollperf/measure/payload.hpp"
#include "pollperf/measure/watch.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// Call before the first message of a workload, and before a peer can send its first message.
template <class Path>
void begin_workload(Path& path, const Workload& workload) {
    const std::uint32_t size = is_atomic(workload.op) ? kAtomicSize : workload.size;
    for (unsigned end = 0; end < path.ends(); ++end) {
        auto& state = path.end(end);
        state.sequence = 0;
        state.received_before = state.received;
        state.issued_before = state.issued;
        // A server's last answers may have had no completion. They are done, since the client has got them.
        state.completed = state.issued;
        for (std::uint32_t slot = 0; slot < path.layout().in_slots; ++slot) {
            const std::span<std::byte> in{state.memory + path.layout().in(slot), size};
            switch (workload.op) {
                case Op::write:
                    // The last byte of message 0, so that no older byte can be mistaken for that of message 1.
                    store_byte(&in[size - 1], pattern(0, size - 1));
                    break;
                case Op::read:
                    if (workload.verify) {
                        fill(in, 1);
                    }
                    break;
                case Op::fetch_add:
                case Op::compare_swap: std::memset(in.data(), 0, in.size()); break;
                case Op::send:
                case Op::write_imm: break;
            }
        }
    }
}

template <class Path>
class Messages {
public:
    Messages(Path& path, const Workload& workload, Watch& watch) : path_(path), workload_(workload), watch_(watch) {}

    /// The outgoing buffer of the request with this number.
    [[nodiscard]] std::span<std::byte> out(unsigned end, std::uint64_t number) {
        return {path_.end(end).memory + path_.layout().out(number),
                is_atomic(workload_.op) ? kAtomicSize : workload_.size};
    }
    [[nodiscard]] std::span<std::byte> out(unsigned end) { return out(end, 0); }

    /// Counts the next message, and writes its bytes into the buffer. Without kVerify, this writes only the last byte
    /// of an RDMA write, and nothing for other messages.
    template <bool kVerify>
    void next_message(unsigned end) {
        auto& state = path_.end(end);
        ++state.sequence;
        if (!kVerify && workload_.op != Op::write) {
            return;
        }
        if (workload_.buffer_reused()) {
            drain(end);
        }
        if constexpr (kVerify) {
            fill(out(end), state.sequence);
        } else {
            store_byte(&out(end)[workload_.size - 1], pattern(state.sequence, workload_.size - 1));
        }
    }

    /// Checks the arrived message with the current sequence number.
    template <bool kVerify>
    void check_message(unsigned end) {
        if constexpr (kVerify) {
            const auto& state = path_.end(end);
            if (workload_.op == Op::send) {
                check({path_.received(end, state.received_before + state.sequence - 1), workload_.size}, end);
            } else {
                check_bytes<kVerify>(end);
            }
        }
    }

    /// Checks the bytes that the peer wrote.
    template <bool kVerify>
    void check_bytes(unsigned end) {
        if constexpr (kVerify) {
            const auto& state = path_.end(end);
            const std::span<const std::byte> bytes{state.memory + path_.layout().in(0), workload_.size};
            auto wrong = first_difference(bytes, state.sequence);
            // Few devices promise to write the last byte last (H12). The other bytes therefore get time to arrive.
            const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
            while (wrong && std::chrono::steady_clock::now() < deadline) {
                path_.poll();
                wrong = first_difference(bytes, state.sequence);
            }
            demand(wrong, bytes, state.sequence);
        }
    }

    /// Checks bytes that should be those of the end's current message.
    void check(std::span<const std::byte> bytes, unsigned end) {
        demand(first_difference(bytes, path_.end(end).sequence), bytes, path_.end(end).sequence);
    }
    void check(std::span<const std::byte> bytes, unsigned, std::uint64_t sequence) {
        demand(first_difference(bytes, sequence), bytes, sequence);
    }

    /// Waits for the completions of all requests of the end.
    void drain(unsigned end) {
        const auto& state = path_.end(end);
        watch_.until(path_, end, "the completion of its request", [&] { return state.idle(); });
    }

    /// Issues one request of the end. Waits if there is no room for it.
    void issue(unsigned end, bool last) {
        if (path_.issue(end, 1, last) == 0) [[unlikely]] {
            watch_.until(path_, end, "room for its request", [&] { return path_.issue(end, 1, last) != 0; });
        }
    }

    /// Posts receives again, in batches.
    void give_back(unsigned end) {
        while (path_.repost_due(end)) {
            path_.repost(end);
        }
    }

private:
    void demand(std::optional<std::size_t> wrong, std::span<const std::byte> bytes, std::uint64_t sequence) {
        if (wrong) [[unlikely]] {
            fail_check(*wrong, load_byte(&bytes[*wrong]), sequence);
        }
    }

    [[noreturn, gnu::cold, gnu::noinline]] void fail_check(std::size_t position, unsigned found,
                                                           std::uint64_t sequence) {
        throw MeasurementError(fmt::format("path {}, {}: message {} is wrong at byte {} of {}: {:#04x}, not {:#04x}",
                                           path_name(Path::kKind), op_name(workload_.op), sequence, position,
                                           workload_.size, found, pattern(sequence, position)));
    }

    Path& path_;
    const Workload workload_;
    Watch& watch_;
};

}  // namespace pollcore::perf
