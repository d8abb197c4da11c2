// Shared by the tests of pollperf's loops with many operations in flight: a model of a device whose time is a number,
// and a loop on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ends_in_memory.hpp"
#include "pollperf/measure/messages.hpp"
#include "pollperf/measure/recorder.hpp"
#include "pollperf/measure/window.hpp"
#include "pollperf/paths/end_state.hpp"

namespace pollcore::perf {

/// Not one, so that a time that is not converted is noticed.
inline constexpr double kUnitsPerNs = 2;
constexpr std::uint64_t of_ns(double ns) {
    return static_cast<std::uint64_t>(ns * kUnitsPerNs);
}
constexpr std::uint64_t of_ms(double ms) {
    return of_ns(ms * 1e6);
}

struct VirtualClock {
    const std::uint64_t* time = nullptr;
    [[nodiscard]] std::uint64_t now() const { return *time; }
    [[nodiscard]] static double units_per_ns() { return kUnitsPerNs; }
};

/// A path to a device that carries out one request after the other, each some time after it was posted. Only polls and
/// posts take time. Both ends of all connections are in one memory.
class DevicePath : public test::EndsInMemory {
public:
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return 1u << 10; }

    DevicePath(const EndLayout& layout, unsigned connections)
        : EndsInMemory(layout, connections), placed_(2 * std::size_t{connections}) {}

    std::uint32_t issue(unsigned i, std::uint32_t n, bool last) {
        EndState& state = end(i);
        EXPECT_GE(n, 1u);
        EXPECT_LE(n, workload().post_list);
        EXPECT_LE(state.in_flight() + n, workload().tx_depth);
        const std::uint32_t taken = takes ? takes(n) : n;
        for (std::uint32_t k = 0; k < taken; ++k) {
            const bool signaled = is_signaled(state, last && k + 1 == n);
            signals += signaled;
            const std::byte* out = state.memory + layout().out(state.issued);
            requests_.push_back({i, state.issued++, signaled, time + latency, {out, out + bytes_of(workload().op)}});
            posted_at.push_back(time);
        }
        most_in_flight = std::max(most_in_flight, state.in_flight());
        lists.push_back(n);
        time += post_time;
        return taken;
    }

    std::size_t poll(std::chrono::nanoseconds patience = {}) {
        if (++polls > 50'000'000) {
            throw std::logic_error("a loop does not end");
        }
        time += poll_time;
        if (pause_at && time >= *pause_at) {
            pause_at.reset();
            time += pause;
        }
        carry_out_all();
        if (sleeps && completions_.empty()) {
            const std::uint64_t wake = time + of_ns(static_cast<double>(patience.count()));
            time = std::max(time, requests_.empty() ? wake : std::min(wake, next_end()));
            carry_out_all();
        }
        std::size_t n = 0;
        for (; n < kPollBatch && !completions_.empty(); ++n) {
            const Completion one = completions_.front();
            completions_.pop_front();
            if (one.receive) {
                ++end(one.end).received;
            } else {
                end(one.end).completed = one.number + 1;
                completed_at.push_back(time);
            }
        }
        return n;
    }

    void look_after_peer(unsigned, const char*) {}

    // ---- the device, and the thread that polls: durations in units ----

    std::uint64_t time = 12345;
    std::uint64_t latency = of_ns(1500);
    std::uint64_t service = of_ns(500);  // between two requests
    std::uint64_t poll_time = of_ns(100);
    std::uint64_t post_time = 0;
    bool sleeps = false;  // polls wait for what comes, for as long as they may
    std::uint64_t stall_from = 0;
    std::uint64_t stall_to = 0;             // until then nothing is carried out
    std::optional<std::uint64_t> pause_at;  // the thread does not run for a while
    std::uint64_t pause = 0;
    std::function<std::uint32_t(std::uint32_t n)> takes;  // how many of n requests there is room for
    std::function<bool(std::uint64_t number)> lost;       // on the way to the peer
    std::uint64_t spoil_number = ~0ull;                   // a request of the first end
    std::size_t spoil_byte = 0;

    // ---- what has happened ----

    std::uint64_t polls = 0;
    std::uint64_t signals = 0;
    std::uint64_t most_in_flight = 0;  // on one end
    std::uint64_t carried_out = 0;
    std::uint64_t without_receive = 0;  // so often a message has found none
    std::vector<std::uint32_t> lists;   // the lengths of what was posted together
    std::vector<std::uint64_t> posted_at;
    std::vector<std::uint64_t> completed_at;

private:
    static constexpr std::size_t kPollBatch = 16;
    struct Request {
        unsigned end;
        std::uint64_t number;
        bool signaled;
        std::uint64_t ready;
        std::vector<std::byte> bytes;
    };
    struct Completion {
        unsigned end;
        bool receive;
        std::uint64_t number;
    };

    // When the oldest request ends.
    [[nodiscard]] std::uint64_t next_end() const {
        const std::uint64_t end = std::max(requests_.front().ready, last_end_ + service);
        return end >= stall_from && end < stall_to ? stall_to : end;
    }
    void carry_out_all() {
        while (!requests_.empty() && next_end() <= time) {
            if (!carry_out(requests_.front())) {
                return;  // the device tries again
            }
            last_end_ = next_end();
            requests_.pop_front();
        }
    }

    // Returns false if a reliable message has found no receive.
    bool carry_out(const Request& request) {
        EndState& near = end(request.end);
        const unsigned peer = peer_of(request.end);
        expect_unchanged(workload().op, near.memory + layout().out(request.number), request.bytes);
        const bool is_lost = lost && lost(request.number);
        if (!is_lost) {
            if (takes_receive(workload().op) && placed_[peer] == end(peer).reposted) {
                ++without_receive;
                if (workload().transport == QpType::rc) {
                    return false;
                }
            } else {
                deliver(request, near, peer);
            }
        }
        ++carried_out;
        if (request.signaled) {
            completions_.push_back({request.end, false, request.number});
        }
        return true;
    }

    void deliver(const Request& request, const EndState& near, unsigned peer) {
        const Op op = workload().op;
        const std::uint64_t number = request.number - near.issued_before;
        std::byte* const far = end(peer).memory;
        std::byte* const destination =
            transfer(op, request.bytes, number, near.memory + layout().out(request.number),
                     far + layout().in(is_answered(op) ? 0 : number), far + layout().receive(placed_[peer]));
        if (request.end == 0 && request.number == spoil_number) {
            destination[spoil_byte] ^= std::byte{0x10};
        }
        if (takes_receive(op)) {
            ++placed_[peer];
            completions_.push_back({peer, true, 0});
        }
    }

    std::vector<std::uint64_t> placed_;  // receives of each end that have a message
    std::deque<Request> requests_;
    std::deque<Completion> completions_;
    std::uint64_t last_end_ = 0;  // of the request before
};

[[nodiscard]] inline Workload many(Op op, std::uint32_t tx_depth, std::uint32_t post_list = 1,
                                   std::uint32_t signal_every = 1) {
    return {.test = perf::Test::bw,
            .op = op,
            .size = is_atomic(op) ? kAtomicSize : 100,
            .one_sided = true,
            .tx_depth = tx_depth,
            .post_list = post_list,
            .signal_every = signal_every};
}
[[nodiscard]] inline Workload verified(Workload workload) {
    workload.verify = true;
    return workload;
}

struct WindowRun {
    Workload workload;
    unsigned connections;
    unsigned senders;
    DevicePath path;
    Watch watch{std::chrono::seconds(60)};
    Recorder recorder{kUnitsPerNs * 1e9, 1};
    Window<DevicePath, VirtualClock> window;

    explicit WindowRun(const Workload& given, unsigned n = 1, std::uint32_t receives = 64)
        : workload(given),
          connections(n),
          senders(given.bidirectional ? 2 * n : n),
          path(EndLayout(given.size, given.verify ? given.tx_depth : 1, receives, given.transport), n),
          window(begun(), workload, watch, senders, VirtualClock{&path.time}) {}

    /// For a test in which nothing comes any more.
    void give_up_soon() { watch = Watch(std::chrono::milliseconds(150)); }
    Done operations(std::uint64_t n) { return window.run({.operations = n}, recorder); }
    Done milliseconds(std::uint64_t ms) { return window.run({.time = std::chrono::milliseconds(ms)}, recorder); }
    std::string failure(std::uint64_t n) {
        try {
            operations(n);
            check_far_ends();
        } catch (const MeasurementError& error) {
            return error.what();
        }
        return "nothing was found";
    }
    /// As a path run does at the end.
    void check_far_ends() {
        for (const unsigned first : {connections, 0u}) {
            if (first == 0 && !workload.bidirectional) {
                return;
            }
            std::vector<std::uint64_t> posted;
            for (unsigned i = 0; i < connections; ++i) {
                posted.push_back(path.end(connections - first + i).issued);
            }
            if (takes_receive(workload.op)) {
                window.finish(posted, first, std::chrono::milliseconds(20));
            }
            if (workload.verify && (workload.op == Op::write || workload.op == Op::write_imm)) {
                for (unsigned i = 0; i < connections; ++i) {
                    window.check_writes(first + i, posted[i]);
                }
            }
        }
    }
    [[nodiscard]] std::uint64_t arrived() {
        std::uint64_t sum = 0;
        for (unsigned end = 0; end < 2 * connections; ++end) {
            sum += path.end(end).arrived();
        }
        return sum;
    }
    void expect_idle(const std::string& what) {
        for (unsigned end = 0; end < 2 * connections; ++end) {
            EXPECT_TRUE(path.end(end).idle()) << what << ", end " << end;
        }
    }

private:
    DevicePath& begun() {
        begin_workload(path, workload);
        path.prepare(workload);
        return path;
    }
};

}  // namespace pollcore::perf
