// The contents of messages: what is written before a message is sent and, with --verify, checked after it has arrived.
//
// Thread safety: used by the measuring thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "payload.hpp"
#include "watch.hpp"
#include "workload.hpp"

namespace pollcore::perf {

/// Call before the first message of a workload, and before a peer can send its first message. For writes, this stores
/// the last byte of message 0 into memory, so that no older byte can be mistaken for the last byte of message 1.
template <class Path>
void begin_workload(Path& path, const Workload& workload, unsigned ends) {
    for (unsigned end = 0; end < ends; ++end) {
        EndState& state = path.end(end);
        state.sequence = 0;
        state.received_before = state.received;
        if (workload.op == Op::write) {
            store_byte(state.memory + path.layout().in() + workload.size - 1, pattern(0, workload.size - 1));
        }
    }
}

template <class Path>
class Messages {
public:
    Messages(Path& path, const Workload& workload, Watch& watch) : path_(path), workload_(workload), watch_(watch) {}

    [[nodiscard]] std::span<std::byte> out(unsigned end) {
        return {path_.end(end).memory + path_.layout().out(),
                workload_.op == Op::fetch_add ? kAtomicSize : workload_.size};
    }

    /// Counts the next message, and writes its bytes into the buffer. Without kVerify, this writes only the last byte
    /// of an RDMA write, and nothing for a send.
    template <bool kVerify>
    void next_message(unsigned end) {
        EndState& state = path_.end(end);
        ++state.sequence;
        if (!kVerify && workload_.op == Op::send) {
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

    /// Checks the received message with the current sequence number.
    template <bool kVerify>
    void check_message(unsigned end) {
        if constexpr (kVerify) {
            const EndState& state = path_.end(end);
            const std::span<const std::byte> bytes{path_.received(end, state.received_before + state.sequence - 1),
                                                   workload_.size};
            demand(first_difference(bytes, state.sequence), bytes, end);
        }
    }

    /// Checks the bytes that the peer wrote.
    template <bool kVerify>
    void check_bytes(unsigned end) {
        if constexpr (kVerify) {
            const EndState& state = path_.end(end);
            const std::span<const std::byte> bytes{state.memory + path_.layout().in(), workload_.size};
            auto wrong = first_difference(bytes, state.sequence);
            // Few devices promise to write the last byte last (H12). The other bytes therefore get time to arrive.
            const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
            while (wrong && std::chrono::steady_clock::now() < deadline) {
                path_.poll();
                wrong = first_difference(bytes, state.sequence);
            }
            demand(wrong, bytes, end);
        }
    }

    /// Checks the bytes in the end's own buffer, after an RDMA read into it.
    void check_out(unsigned end) { demand(first_difference(out(end), path_.end(end).sequence), out(end), end); }

    /// Waits for the completions of all signaled requests of the end.
    void drain(unsigned end) {
        const EndState& state = path_.end(end);
        watch_.until(path_, end, "the completion of its request", [&] { return state.idle(); });
    }

private:
    void demand(std::optional<std::size_t> wrong, std::span<const std::byte> bytes, unsigned end) {
        if (wrong) [[unlikely]] {
            fail_check(*wrong, load_byte(&bytes[*wrong]), end);
        }
    }

    [[noreturn, gnu::cold, gnu::noinline]] void fail_check(std::size_t position, unsigned found, unsigned end) {
        const std::uint64_t sequence = path_.end(end).sequence;
        throw MeasurementError(fmt::format("path {}, {}: message {} is wrong at byte {} of {}: {:#04x}, not {:#04x}",
                                           path_name(Path::kKind), op_name(workload_.op), sequence, position,
                                           workload_.size, found, pattern(sequence, position)));
    }

    Path& path_;
    const Workload workload_;
    Watch& watch_;
};

}  // namespace pollcore::perf
