// What the models of a path to a device have in common: both ends of all connections, in memory of this process. A
// model adds when the device carries out which request.
//
// Thread safety: used by one thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/measure/workload.hpp"
#include "pollperf/paths/end_state.hpp"

namespace pollcore::test {

/// The near ends come first, then the far ends in the same order.
class EndsInMemory {
public:
    static constexpr perf::PathKind kKind = perf::PathKind::direct;

    EndsInMemory(const perf::EndLayout& layout, unsigned connections)
        : layout_(layout),
          batch_(perf::repost_batch(layout.receive_slots)),
          connections_(connections),
          visible_(2 * connections),
          ends_(2 * std::size_t{connections}) {
        for (perf::EndState& state : ends_) {
            memory_.push_back(std::make_unique<std::byte[]>(layout.bytes()));
            state.memory = memory_.back().get();
            state.reposted = layout.receive_slots;
        }
    }

    void prepare(const perf::Workload& workload) {
        workload_ = workload;
        for (perf::EndState& state : ends_) {
            state.until_signal = workload.signal_every;
        }
    }
    /// From now on the loops see the near ends only. The test plays the far ends.
    void hide_far_ends() { visible_ = connections_; }
    [[nodiscard]] unsigned ends() const { return visible_; }
    [[nodiscard]] perf::EndState& end(unsigned i) { return ends_[i]; }
    [[nodiscard]] const perf::EndLayout& layout() const { return layout_; }
    [[nodiscard]] const std::byte* received(unsigned i, std::uint64_t number) {
        return ends_[i].memory + layout_.receive(number) + layout_.receive_offset;
    }

    [[nodiscard]] bool repost_due(unsigned i) const {
        return ends_[i].reposted + batch_ <= ends_[i].received + layout_.receive_slots;
    }
    void repost(unsigned i) {
        for (std::uint32_t k = 0; k < batch_; ++k) {
            // The device may write into a posted receive at any time.
            std::memset(ends_[i].memory + layout_.receive(ends_[i].reposted++), 0xdd, layout_.receive_length());
        }
    }

    [[nodiscard]] std::string stalled(unsigned i, const char* what, std::chrono::milliseconds) const {
        return "end " + std::to_string(i) + " waits for " + what;
    }

protected:
    [[nodiscard]] const perf::Workload& workload() const { return workload_; }
    [[nodiscard]] unsigned connections() const { return connections_; }
    [[nodiscard]] unsigned peer_of(unsigned i) const {
        return (i + connections_) % static_cast<unsigned>(ends_.size());
    }
    [[nodiscard]] std::size_t bytes_of(perf::Op op) const {
        return perf::is_atomic(op) ? perf::kAtomicSize : workload_.size;
    }

    /// Whether the next request of this end has a completion. `must` says that it has one anyway.
    [[nodiscard]] bool is_signaled(perf::EndState& state, bool must) const {
        const bool signaled = must || --state.until_signal == 0;
        if (signaled) {
            state.until_signal = workload_.signal_every;
        }
        return signaled;
    }

    /// `bytes` are those that the buffer had when the request was posted.
    void expect_unchanged(perf::Op op, const std::byte* out, std::span<const std::byte> bytes) const {
        if (!workload_.inlined && !perf::is_answered(op)) {
            EXPECT_EQ(std::memcmp(out, bytes.data(), bytes.size()), 0)
                << "the buffer of a request in flight has changed";
        }
    }

    /// Carries out an operation. `out` is the buffer of the request, `in` the peer's buffer, `receive` the peer's
    /// receive. `number` counts the requests of the workload. Returns where the bytes have gone.
    std::byte* transfer(perf::Op op, std::span<const std::byte> bytes, std::uint64_t number, std::byte* out,
                        std::byte* in, std::byte* receive) const {
        std::uint64_t word = 0;
        switch (op) {
            case perf::Op::send:
                std::memset(receive, 0xee, layout_.receive_offset);
                std::memcpy(receive + layout_.receive_offset, bytes.data(), bytes.size());
                return receive + layout_.receive_offset;
            case perf::Op::write:
            case perf::Op::write_imm: std::memcpy(in, bytes.data(), bytes.size()); return in;
            case perf::Op::read: std::memcpy(out, in, bytes.size()); return out;
            case perf::Op::fetch_add:
            case perf::Op::compare_swap:
                std::memcpy(&word, in, sizeof word);
                std::memcpy(out, &word, sizeof word);
                word += op == perf::Op::fetch_add || word == number;
                std::memcpy(in, &word, sizeof word);
                return out;
        }
        return out;
    }

private:
    const perf::EndLayout layout_;
    const std::uint32_t batch_;
    const unsigned connections_;
    unsigned visible_;
    perf::Workload workload_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<perf::EndState> ends_;
};

}  // namespace pollcore::test
