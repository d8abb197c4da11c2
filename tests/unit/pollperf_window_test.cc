// pollperf's loops with many operations in flight, on a model of a device whose time is a number. Then the recorder
// that collects what the loops measure.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/measure/messages.hpp"
#include "pollperf/measure/recorder.hpp"
#include "pollperf/measure/window.hpp"
#include "pollperf/paths/end_state.hpp"

namespace pollcore::perf {
namespace {

// Not one, so that a time that is not converted is noticed.
constexpr double kUnitsPerNs = 2;
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

// A path to a device that carries out one request after the other, each some time after it was posted. Only polls and
// posts take time. Both ends of all connections are in one memory.
class DevicePath {
public:
    static constexpr PathKind kKind = PathKind::direct;
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return 1u << 10; }

    DevicePath(const EndLayout& layout, unsigned connections)
        : layout_(layout),
          batch_(repost_batch(layout.receive_slots)),
          connections_(connections),
          visible_(2 * connections),
          ends_(2 * std::size_t{connections}),
          placed_(2 * std::size_t{connections}) {
        for (EndState& state : ends_) {
            memory_.push_back(std::make_unique<std::byte[]>(layout.bytes()));
            state.memory = memory_.back().get();
            state.reposted = layout.receive_slots;
        }
    }

    void prepare(const Workload& workload) {
        workload_ = workload;
        for (EndState& state : ends_) {
            state.until_signal = workload.signal_every;
        }
    }
    // From now on the loops see the near ends only. The test plays the far ends.
    void hide_far_ends() { visible_ = connections_; }
    [[nodiscard]] unsigned ends() const { return visible_; }
    [[nodiscard]] EndState& end(unsigned i) { return ends_[i]; }
    [[nodiscard]] const EndLayout& layout() const { return layout_; }
    [[nodiscard]] const std::byte* received(unsigned i, std::uint64_t number) {
        return ends_[i].memory + layout_.receive(number) + layout_.receive_offset;
    }

    std::uint32_t issue(unsigned i, std::uint32_t n, bool last) {
        EndState& state = ends_[i];
        EXPECT_GE(n, 1u);
        EXPECT_LE(n, workload_.post_list);
        EXPECT_LE(state.in_flight() + n, workload_.tx_depth);
        const std::uint32_t taken = takes ? takes(n) : n;
        for (std::uint32_t k = 0; k < taken; ++k) {
            const bool signaled = (last && k + 1 == n) || --state.until_signal == 0;
            if (signaled) {
                state.until_signal = workload_.signal_every;
                ++signals;
            }
            const std::byte* out = state.memory + layout_.out(state.issued);
            requests_.push_back({i, state.issued++, signaled, time + latency, {out, out + bytes()}});
            posted_at.push_back(time);
        }
        most_in_flight = std::max(most_in_flight, state.in_flight());
        lists.push_back(n);
        time += post_time;
        return taken;
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
                ++ends_[one.end].received;
            } else {
                ends_[one.end].completed = one.number + 1;
                completed_at.push_back(time);
            }
        }
        return n;
    }

    void look_after_peer(unsigned, const char*) {}
    [[nodiscard]] std::string stalled(unsigned i, const char* what, std::chrono::milliseconds) const {
        return "end " + std::to_string(i) + " waits for " + what;
    }

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

    [[nodiscard]] std::size_t bytes() const { return is_atomic(workload_.op) ? kAtomicSize : workload_.size; }

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
        EndState& near = ends_[request.end];
        const unsigned peer = (request.end + connections_) % static_cast<unsigned>(ends_.size());
        EndState& far = ends_[peer];
        if (!is_answered(workload_.op)) {
            EXPECT_EQ(std::memcmp(near.memory + layout_.out(request.number), request.bytes.data(), bytes()), 0)
                << "the buffer of a request in flight has changed";
        }
        const bool is_lost = lost && lost(request.number);
        if (!is_lost) {
            if (takes_receive(workload_.op) && placed_[peer] == far.reposted) {
                ++without_receive;
                if (workload_.transport == QpType::rc) {
                    return false;
                }
            } else {
                transfer(request, near, peer);
            }
        }
        ++carried_out;
        if (request.signaled) {
            completions_.push_back({request.end, false, request.number});
        }
        return true;
    }

    void transfer(const Request& request, EndState& near, unsigned peer) {
        EndState& far = ends_[peer];
        std::byte* const out = near.memory + layout_.out(request.number);
        std::byte* const in =
            far.memory + layout_.in(is_answered(workload_.op) ? 0 : request.number - near.issued_before);
        std::byte* destination = is_answered(workload_.op) ? out : in;
        std::uint64_t word = 0;
        switch (workload_.op) {
            case Op::send: {
                std::byte* const receive = far.memory + layout_.receive(placed_[peer]);
                std::memset(receive, 0xee, layout_.receive_offset);
                destination = receive + layout_.receive_offset;
                std::memcpy(destination, request.bytes.data(), bytes());
                break;
            }
            case Op::write:
            case Op::write_imm: std::memcpy(in, request.bytes.data(), bytes()); break;
            case Op::read: std::memcpy(out, in, bytes()); break;
            case Op::fetch_add:
            case Op::compare_swap:
                std::memcpy(&word, in, sizeof word);
                std::memcpy(out, &word, sizeof word);
                word += workload_.op == Op::fetch_add || word == request.number - near.issued_before;
                std::memcpy(in, &word, sizeof word);
                break;
        }
        if (request.end == 0 && request.number == spoil_number) {
            destination[spoil_byte] ^= std::byte{0x10};
        }
        if (takes_receive(workload_.op)) {
            ++placed_[peer];
            completions_.push_back({peer, true, 0});
        }
    }

    const EndLayout layout_;
    const std::uint32_t batch_;
    const unsigned connections_;
    unsigned visible_;
    Workload workload_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<EndState> ends_;
    std::vector<std::uint64_t> placed_;  // receives of each end that have a message
    std::deque<Request> requests_;
    std::deque<Completion> completions_;
    std::uint64_t last_end_ = 0;  // of the request before
};

[[nodiscard]] Workload many(Op op, std::uint32_t tx_depth, std::uint32_t post_list = 1,
                            std::uint32_t signal_every = 1) {
    return {.test = perf::Test::bw,
            .op = op,
            .size = is_atomic(op) ? kAtomicSize : 100,
            .one_sided = true,
            .tx_depth = tx_depth,
            .post_list = post_list,
            .signal_every = signal_every};
}
[[nodiscard]] Workload verified(Workload workload) {
    workload.verify = true;
    return workload;
}

struct WindowRun {
    Workload workload;
    unsigned connections;
    unsigned senders;
    DevicePath path;
    Watch watch{std::chrono::milliseconds(150)};
    Recorder recorder{kUnitsPerNs * 1e9, 1};
    Window<DevicePath, VirtualClock> window;

    explicit WindowRun(const Workload& given, unsigned n = 1, std::uint32_t receives = 64)
        : workload(given),
          connections(n),
          senders(given.bidirectional ? 2 * n : n),
          path(EndLayout(given.size, given.verify ? given.tx_depth : 1, receives, given.transport), n),
          window(begun(), workload, watch, senders, VirtualClock{&path.time}) {}

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
    // As a path run does at the end.
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

// ---- the closed loop: counts ----

struct Shape {
    std::uint32_t tx_depth;
    std::uint32_t post_list;
    std::uint32_t signal_every;
};
// A list is at most as long as the depth, and a completion comes at least every half of the depth.
constexpr Shape kShapes[] = {{1, 1, 1}, {2, 1, 1},  {4, 3, 2},   {8, 3, 4},   {8, 8, 4},
                             {8, 8, 3}, {16, 5, 7}, {16, 13, 8}, {16, 16, 8}, {128, 16, 64}};

[[nodiscard]] std::string name_of(const Shape& shape, unsigned connections, std::uint64_t operations) {
    return "depth " + std::to_string(shape.tx_depth) + ", lists of " + std::to_string(shape.post_list) +
           ", a completion every " + std::to_string(shape.signal_every) + ", " + std::to_string(connections) +
           " connections, " + std::to_string(operations) + " operations";
}

void expect_exact(const Shape& shape, unsigned connections, bool bidirectional, std::uint64_t operations,
                  const std::function<std::uint32_t(std::uint32_t)>& takes) {
    const std::string name = name_of(shape, connections, operations);
    Workload workload = many(Op::send, shape.tx_depth, shape.post_list, shape.signal_every);
    workload.bidirectional = bidirectional;
    WindowRun run(workload, connections);
    run.path.takes = takes;
    Done done;
    ASSERT_NO_THROW(done = run.operations(operations)) << name;
    EXPECT_EQ(done.operations, operations) << name;
    EXPECT_EQ(run.path.carried_out, operations) << name;
    EXPECT_LE(run.path.most_in_flight, shape.tx_depth) << name;
    run.expect_idle(name);
    std::uint64_t signals = 0;
    std::uint64_t least = ~std::uint64_t{0};
    std::uint64_t most = 0;
    for (unsigned end = 0; end < run.senders; ++end) {
        const std::uint64_t issued = run.path.end(end).issued;
        least = std::min(least, issued);
        most = std::max(most, issued);
        signals += (issued + shape.signal_every - 1) / shape.signal_every;
    }
    EXPECT_LE(most - least, 1u) << name;
    EXPECT_EQ(run.path.signals, signals) << name;
    run.check_far_ends();
    EXPECT_EQ(run.arrived(), operations) << name;
    const auto [latency, slices] = run.recorder.take();
    EXPECT_EQ(latency.count(), operations) << name;
    EXPECT_GE(latency.least(), run.path.latency) << name;
}

TEST(PollperfWindow, IterationsAreExactWithAnyNumberOfConnections) {
    for (const Shape& shape : kShapes) {
        for (const unsigned connections : {1u, 2u, 5u}) {
            for (const bool bidirectional : {false, true}) {
                for (const std::uint64_t operations : {1u, 2u, 5u, 100u, 1003u}) {
                    ASSERT_NO_FATAL_FAILURE(expect_exact(shape, connections, bidirectional, operations, {}));
                }
            }
        }
    }
}

// As with the runtime, whose ring may be full.
TEST(PollperfWindow, APathMayTakeFewerRequestsThanItIsOffered) {
    for (const Shape& shape : kShapes) {
        for (const unsigned connections : {1u, 3u}) {
            std::mt19937 random(shape.tx_depth + connections);
            const auto some = [&](std::uint32_t n) {
                return std::uniform_int_distribution<std::uint32_t>(0, n)(random);
            };
            ASSERT_NO_FATAL_FAILURE(expect_exact(shape, connections, true, 1003, some));
            const auto one = [](std::uint32_t) { return 1u; };
            ASSERT_NO_FATAL_FAILURE(expect_exact(shape, connections, false, 1003, one));
        }
    }
}

TEST(PollperfWindow, TheDepthIsUsedAndListsAreWhole) {
    WindowRun run(many(Op::write, 64, 8, 4));
    run.operations(8000);
    EXPECT_EQ(run.path.most_in_flight, 64u);
    EXPECT_EQ(run.path.lists, std::vector<std::uint32_t>(1000, 8));
    WindowRun rest(many(Op::write, 64, 8, 4));
    rest.operations(21);
    EXPECT_EQ(rest.path.lists, (std::vector<std::uint32_t>{8, 8, 5}));
}

TEST(PollperfWindow, ALoopMayRunAgain) {
    WindowRun run(many(Op::send, 16, 4, 8), 3);
    std::uint64_t all = 0;
    for (const std::uint64_t operations : {100u, 1u, 77u, 0u, 500u}) {
        EXPECT_EQ(run.operations(operations).operations, operations);
        run.expect_idle("after a run");
        all += operations;
    }
    run.check_far_ends();
    EXPECT_EQ(run.arrived(), all);
    EXPECT_EQ(run.recorder.take().first.count(), all);
}

TEST(PollperfWindow, OfARateOneLatencyIsRecordedForEachCompletionThatIsSeen) {
    Workload workload = many(Op::write, 64, 16, 16);
    workload.test = perf::Test::rate;
    WindowRun run(workload);
    EXPECT_EQ(run.operations(1600).operations, 1600u);
    const auto [latency, slices] = run.recorder.take();
    EXPECT_GE(latency.count(), 10u);
    EXPECT_LE(latency.count(), 100u);
}

TEST(PollperfWindow, ALatencyIsTheTimeFromThePostToThePollThatSeesIt) {
    WindowRun run(many(Op::write, 1));
    run.path.latency = of_ns(1500);
    run.path.poll_time = of_ns(100);
    const Done done = run.operations(100);
    const auto [latency, slices] = run.recorder.take();
    EXPECT_EQ(latency.least(), of_ns(1500));
    EXPECT_EQ(latency.greatest(), of_ns(1500));
    EXPECT_EQ(done.units, 100 * of_ns(1500));
}

// ---- the closed loop: by time ----

TEST(PollperfWindow, ByTimeOnlyWhatIsDoneInTimeCounts) {
    for (const unsigned connections : {1u, 3u}) {
        WindowRun run(many(Op::write, 64), connections);
        const std::uint64_t began = run.path.time;
        const Done done = run.milliseconds(5);
        EXPECT_GE(done.units, of_ms(5));
        EXPECT_LE(done.units, of_ms(5) + run.path.poll_time);
        const auto in_time = std::count_if(run.path.completed_at.begin(), run.path.completed_at.end(),
                                           [&](std::uint64_t at) { return at <= began + done.units; });
        EXPECT_EQ(done.operations, static_cast<std::uint64_t>(in_time));
        EXPECT_NEAR(static_cast<double>(done.operations), 5e6 / 500, 50);  // what the device can do
        EXPECT_LT(*std::max_element(run.path.posted_at.begin(), run.path.posted_at.end()), began + of_ms(5));
        run.expect_idle("by time");
        EXPECT_GT(run.path.carried_out, done.operations);  // some were in flight at the end
        EXPECT_EQ(run.recorder.take().first.count(), done.operations);
    }
}

TEST(PollperfWindow, ByTimeNothingStaysInFlightThoughFewHaveACompletion) {
    for (const Shape& shape : kShapes) {
        WindowRun run(many(Op::send, shape.tx_depth, shape.post_list, shape.signal_every), 2);
        for (int round = 0; round < 3; ++round) {
            Done done;
            ASSERT_NO_THROW(done = run.milliseconds(1)) << name_of(shape, 2, 0);
            EXPECT_GT(done.operations, 300u);
            run.expect_idle(name_of(shape, 2, 0));
        }
        EXPECT_LE(run.path.most_in_flight, shape.tx_depth);
        run.check_far_ends();
        EXPECT_EQ(run.arrived(), run.path.carried_out);
    }
}

TEST(PollperfWindow, SlicesAddUpToTheLoop) {
    WindowRun run(many(Op::write, 16), 2);
    const Done done = run.milliseconds(95);
    const auto [latency, slices] = run.recorder.take();
    EXPECT_EQ(slices.size(), 10u);
    std::uint64_t operations = 0;
    double seconds = 0;
    for (const Slice& slice : slices) {
        operations += slice.operations;
        seconds += slice.seconds;
    }
    EXPECT_EQ(operations, done.operations);
    EXPECT_NEAR(seconds, static_cast<double>(done.units) / kUnitsPerNs / 1e9, 1e-9);
    EXPECT_NEAR(slices.back().at_s, seconds, 1e-9);
}

// ---- the closed loop: what operations carry ----

TEST(PollperfWindow, VerifiedOperationsOfAllKindsPass) {
    for (const Op op : kOps) {
        for (const QpType transport : {QpType::rc, QpType::uc, QpType::ud}) {
            for (const bool bidirectional : {false, true}) {
                if (!can_do(transport, op)) {
                    continue;
                }
                Workload workload = verified(many(op, 16, 4, 8));
                workload.transport = transport;
                workload.bidirectional = bidirectional;
                WindowRun run(workload, 2);
                // More than one byte can count.
                EXPECT_EQ(run.failure(2000), "nothing was found") << op_name(op) << ' ' << transport_name(transport);
                EXPECT_EQ(run.failure(3), "nothing was found") << op_name(op) << ' ' << transport_name(transport);
                EXPECT_EQ(run.path.carried_out, 2003u);
            }
        }
    }
}

// At the end of the time a request is posted that has a completion. Its buffer may be that of a result that nobody has
// looked at yet.
TEST(PollperfWindow, VerifiedOperationsPassAtTheEndOfTheTimeToo) {
    for (const Op op : kOps) {
        for (const Shape& shape : kShapes) {
            WindowRun run(verified(many(op, shape.tx_depth, shape.post_list, shape.signal_every)), 2);
            std::mt19937 random(1);
            run.path.takes = [&](std::uint32_t n) {
                return std::uniform_int_distribution<std::uint32_t>(0, n)(random);
            };
            for (std::uint64_t ns = 100'000; ns < 102'000; ns += 70) {
                ASSERT_NO_THROW((void)run.window.run({.time = std::chrono::nanoseconds(ns)}, run.recorder))
                    << op_name(op) << ", " << name_of(shape, 2, 0);
                run.expect_idle(name_of(shape, 2, 0));
            }
            ASSERT_NO_THROW(run.check_far_ends()) << op_name(op);
        }
    }
}

TEST(PollperfWindow, AWrongByteIsFoundInEachOperation) {
    const auto with_wrong_byte = [](Op op, std::uint64_t number, std::size_t byte) {
        WindowRun run(verified(many(op, 16, 4, 8)), 2);
        run.path.spoil_number = number;
        run.path.spoil_byte = byte;
        return run.failure(200);
    };
    const auto wrong = [](Op op, int message, int byte) {
        return "path direct, " + std::string(op_name(op)) + ": message " + std::to_string(message) +
               " is wrong at byte " + std::to_string(byte) + " of 100";
    };
    for (const int byte : {0, 50, 99}) {
        const auto position = static_cast<std::size_t>(byte);
        EXPECT_EQ(with_wrong_byte(Op::send, 40, position).find(wrong(Op::send, 41, byte)), 0u);
        // All verified reads read the same bytes.
        EXPECT_EQ(with_wrong_byte(Op::read, 40, position).find(wrong(Op::read, 1, byte)), 0u);
        for (const Op op : {Op::write, Op::write_imm}) {
            EXPECT_EQ(with_wrong_byte(op, 99, position).find(wrong(op, 100, byte)), 0u);
            EXPECT_EQ(with_wrong_byte(op, 84, position).find(wrong(op, 85, byte)), 0u);
            EXPECT_EQ(with_wrong_byte(op, 83, position), "nothing was found") << "message 100 has taken its place";
        }
    }
    for (const Op op : {Op::fetch_add, Op::compare_swap}) {
        EXPECT_EQ(with_wrong_byte(op, 40, 0),
                  "path direct, " + std::string(op_name(op)) + " 41: the word held 0x38, not 0x28");
    }
}

TEST(PollperfWindow, AResultThatNeverComesIsFound) {
    // The buffer of a result is overwritten before each operation.
    for (const Op op : {Op::read, Op::fetch_add, Op::compare_swap}) {
        WindowRun run(verified(many(op, 16)));
        run.path.lost = [](std::uint64_t number) { return number == 40; };
        EXPECT_NE(run.failure(200), "nothing was found") << op_name(op);
    }
}

TEST(PollperfWindow, FewWritesAreCheckedTooAndNoneIsNoFailure) {
    WindowRun run(verified(many(Op::write, 16)));
    EXPECT_NO_THROW(run.window.check_writes(1, 0));
    run.path.spoil_number = 1;
    run.path.spoil_byte = 7;
    EXPECT_NE(run.failure(3).find("message 2 is wrong at byte 7"), std::string::npos);
    // A peer that says it has posted more than has arrived is caught, too.
    WindowRun fewer(verified(many(Op::write, 16)));
    fewer.operations(20);
    EXPECT_THROW(fewer.window.check_writes(1, 21), MeasurementError);
}

TEST(PollperfWindow, ALostReliableMessageIsFound) {
    WindowRun run(verified(many(Op::send, 16)));
    run.path.lost = [](std::uint64_t number) { return number == 5; };
    EXPECT_NE(run.failure(200).find("message 6 is wrong at byte 0"), std::string::npos);
}

TEST(PollperfWindow, ALostDatagramIsNoFailure) {
    for (const QpType transport : {QpType::uc, QpType::ud}) {
        Workload workload = verified(many(Op::send, 16));
        workload.transport = transport;
        WindowRun run(workload, 2);
        std::mt19937 random(1);
        std::uint64_t losses = 0;
        run.path.lost = [&](std::uint64_t number) {
            const bool is_lost = random() % 5 == 0 || (number >= 500 && number < 800);
            losses += is_lost;
            return is_lost;
        };
        EXPECT_EQ(run.failure(2000), "nothing was found");
        EXPECT_GT(losses, 600u);
        EXPECT_EQ(run.arrived() + losses, 2000u);
    }
}

TEST(PollperfWindow, AWrongByteBesideLostDatagramsIsFound) {
    for (const std::size_t byte : {0, 1, 60, 99}) {
        Workload workload = verified(many(Op::send, 16));
        workload.transport = QpType::ud;
        WindowRun run(workload);
        run.path.lost = [&](std::uint64_t number) { return number % 7 == 0; };
        run.path.spoil_number = 1201;
        run.path.spoil_byte = byte;
        // A wrong first byte looks like another message, which then has wrong bytes.
        const std::string expected = byte == 0 ? "is wrong at byte 1 of 100"
                                               : "message 1202 is wrong at byte " + std::to_string(byte) + " of 100";
        const std::string failure = run.failure(2000);
        EXPECT_NE(failure.find(expected), std::string::npos) << failure;
    }
}

// ---- what arrives ----

TEST(PollperfWindow, NoMessageWaitsForAReceiveIfThereAreMoreThanMessagesInFlight) {
    for (const std::uint32_t receives : {7u, 12u, 31u, 64u}) {
        Workload workload = many(Op::send, 6, 6);
        workload.bidirectional = true;
        WindowRun run(workload, 2, receives);
        run.path.poll_time = of_ns(5000);  // the thread finds several messages at once
        EXPECT_EQ(run.operations(4000).operations, 4000u);
        EXPECT_EQ(run.path.without_receive, 0u) << receives << " receives";
    }
}

TEST(PollperfWindow, AServerTakesMessagesUntilItIsToldToStop) {
    for (const bool verify : {false, true}) {
        Workload workload = many(Op::send, 16);
        workload.verify = verify;
        WindowRun run(workload, 2, 32);
        run.path.hide_far_ends();
        const auto send = [&](unsigned end) {
            EndState& state = run.path.end(end);
            fill({state.memory + run.path.layout().out(state.issued), workload.size}, state.issued + 1);
            run.path.issue(end, 1, true);
        };
        std::atomic<bool> stop{false};
        run.path.takes = {};
        std::uint64_t sent = 0;
        // The device loses nothing; its hook is called once for each message that it carries out.
        run.path.lost = [&](std::uint64_t) {
            if (sent < 1000) {
                ++sent;
                send(2 + sent % 2);
            } else {
                stop.store(true);
            }
            return false;
        };
        send(2);
        ASSERT_NO_THROW(run.window.serve(stop));
        EXPECT_EQ(sent, 1000u);
        run.window.finish(std::vector<std::uint64_t>{run.path.end(2).issued, run.path.end(3).issued}, 0,
                          std::chrono::seconds(10));
        EXPECT_EQ(run.path.end(0).arrived() + run.path.end(1).arrived(), 1001u);
        EXPECT_EQ(run.path.without_receive, 0u);
    }
}

TEST(PollperfWindow, AServerFindsAWrongByte) {
    WindowRun run(verified(many(Op::send, 16)));
    run.path.hide_far_ends();
    for (std::uint64_t n = 0; n < 3; ++n) {
        EndState& state = run.path.end(1);
        fill({state.memory + run.path.layout().out(n), run.workload.size}, n + 1 + (n == 2));
        run.path.issue(1, 1, true);
    }
    const std::atomic<bool> stop{false};
    EXPECT_THROW(run.window.serve(stop), MeasurementError);
}

TEST(PollperfWindow, AServerWaitsForAQuietClientUntilItIsToldOtherwise) {
    WindowRun run(many(Op::send, 16));
    run.path.hide_far_ends();
    unsigned looks = 0;
    Watch watch(std::chrono::milliseconds(1), [&] {
        if (++looks == 3) {
            throw MeasurementError("the client has left");
        }
    });
    Window<DevicePath, VirtualClock> window(run.path, run.workload, watch, 1, VirtualClock{&run.path.time});
    const std::atomic<bool> stop{false};
    EXPECT_THROW(window.serve(stop), MeasurementError);
    EXPECT_EQ(looks, 3u);
}

TEST(PollperfWindow, AStopEndsTheSendingEarlyAndNothingStaysInFlight) {
    WindowRun run(many(Op::send, 16));
    const std::atomic<bool> stop{true};
    const Done done = run.window.run({.operations = 1'000'000}, run.recorder, &stop);
    EXPECT_LT(done.operations, 1000u);
    EXPECT_TRUE(run.path.end(0).idle());
}

TEST(PollperfWindow, WhatDoesNotArriveIsNotWaitedForForEver) {
    WindowRun run(many(Op::send, 16));
    run.operations(10);
    const auto began = std::chrono::steady_clock::now();
    run.window.finish(std::vector<std::uint64_t>{11}, 1, std::chrono::milliseconds(30));
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(30));
    EXPECT_EQ(run.arrived(), 10u);
}

// ---- stalls ----

TEST(PollperfWindow, AStallEndsWithAnError) {
    {
        WindowRun run(many(Op::write, 16), 2);
        run.path.stall_to = ~std::uint64_t{0};
        EXPECT_EQ(run.failure(200), "end 0 waits for the completion of its request");
    }
    {
        // The time ends, and what is in flight does not.
        WindowRun run(many(Op::write, 16));
        run.path.stall_to = ~std::uint64_t{0};
        EXPECT_THROW((void)run.milliseconds(1), MeasurementError);
    }
    {
        WindowRun run(many(Op::write, 16), 2);
        run.path.takes = [](std::uint32_t) { return 0u; };
        EXPECT_THROW((void)run.operations(1), MeasurementError);
    }
}

// ---- the open loop ----

[[nodiscard]] Workload open_workload(std::uint32_t tx_depth) {
    Workload workload = many(Op::write, tx_depth);
    workload.test = perf::Test::lat;
    return workload;
}
constexpr std::uint32_t kDeep = 1u << 15;
constexpr double kPerSecond = 1e6;
constexpr std::uint64_t kStallMs = 10;
constexpr std::uint64_t kDueInStall = 10'000;
constexpr std::chrono::milliseconds kOpenTime{100};
constexpr std::uint64_t kDueInAll = 100'000;
constexpr double kDelayedNs = 10'000;

struct Delayed {
    std::uint64_t count = 0;
    double median_ms = 0;
};
// The requests with a latency that an undisturbed device does not have.
Delayed delayed_of(const Histogram& latency) {
    Delayed delayed;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> buckets;
    latency.for_each([&](std::uint64_t units, std::uint64_t samples) {
        if (static_cast<double>(units) / kUnitsPerNs > kDelayedNs) {
            delayed.count += samples;
            buckets.emplace_back(units, samples);
        }
    });
    std::uint64_t below = 0;
    for (const auto& [units, samples] : buckets) {
        below += samples;
        if (2 * below >= delayed.count) {
            delayed.median_ms = static_cast<double>(units) / kUnitsPerNs / 1e6;
            break;
        }
    }
    return delayed;
}

struct OpenRun : WindowRun {
    using WindowRun::WindowRun;
    // A stall of the device, from a time after the beginning.
    void stall_at(std::uint64_t ms) {
        path.stall_from = path.time + of_ms(static_cast<double>(ms));
        path.stall_to = path.stall_from + of_ms(kStallMs);
    }
    Done open(bool poisson, double per_s = kPerSecond, std::uint64_t seed = 1) {
        return window.run_open({.time = kOpenTime}, {.per_s = per_s, .poisson = poisson, .seed = seed}, recorder);
    }
    // Each due request counts once. Returns the latencies.
    Histogram expect_all(const Done& done) {
        std::uint64_t posted = 0;
        for (unsigned end = 0; end < senders; ++end) {
            posted += path.end(end).issued;
        }
        EXPECT_EQ(done.operations, posted);
        EXPECT_EQ(path.carried_out, posted);
        expect_idle("open loop");
        auto [latency, slices] = recorder.take();
        EXPECT_EQ(latency.count(), posted);
        std::uint64_t in_slices = 0;
        for (const Slice& slice : slices) {
            in_slices += slice.operations;
        }
        EXPECT_EQ(in_slices, posted);
        return latency;
    }
};

void expect_due(const Done& done, bool poisson) {
    if (poisson) {
        EXPECT_NEAR(static_cast<double>(done.operations), static_cast<double>(kDueInAll),
                    5 * std::sqrt(static_cast<double>(kDueInAll)));
    } else {
        EXPECT_EQ(done.operations, kDueInAll);
    }
}

// The reason for the open loop: all requests that were due during a stall show it.
TEST(PollperfOpenLoop, AStallOfTheDeviceDelaysAllRequestsThatAreDueMeanwhile) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(kDeep));
        run.stall_at(30);
        const Done done = run.open(poisson);
        expect_due(done, poisson);
        EXPECT_EQ(done.late, 0u) << "the thread has posted all in time";
        const Histogram latency = run.expect_all(done);
        const Delayed delayed = delayed_of(latency);
        EXPECT_GE(delayed.count, kDueInStall);
        EXPECT_LT(delayed.count, 3 * kDueInStall);  // the device has to do what was left over, too
        EXPECT_GT(delayed.median_ms, 1);
        EXPECT_LT(delayed.median_ms, 10);
        EXPECT_NEAR(static_cast<double>(latency.greatest()), static_cast<double>(of_ms(kStallMs)),
                    static_cast<double>(of_ms(0.1)));
    }
}

TEST(PollperfWindow, AStallOfTheDeviceDelaysNoMoreThanTheDepthOfAClosedLoop) {
    for (const std::uint32_t depth : {1u, 16u}) {
        OpenRun run(open_workload(depth));
        run.stall_at(30);
        run.milliseconds(100);
        const Delayed delayed = delayed_of(run.recorder.take().first);
        EXPECT_GE(delayed.count, 1u);
        EXPECT_LE(delayed.count, depth);
    }
}

TEST(PollperfOpenLoop, AFullQueueDelaysThemTheSameAndTheyArePostedLate) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(64));
        run.stall_at(30);
        const Done done = run.open(poisson);
        expect_due(done, poisson);
        EXPECT_EQ(run.path.most_in_flight, 64u);
        const Delayed delayed = delayed_of(run.expect_all(done));
        EXPECT_GE(delayed.count, kDueInStall);
        EXPECT_GT(delayed.median_ms, 1);
        EXPECT_GE(done.late, kDueInStall - 3 * 64);
        EXPECT_LE(done.late, delayed.count + 64);
    }
}

TEST(PollperfOpenLoop, AStallOfTheThreadDelaysThemTheSameAndTheyArePostedLate) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(kDeep));
        run.path.pause_at = run.path.time + of_ms(30);
        run.path.pause = of_ms(kStallMs);
        const Done done = run.open(poisson);
        expect_due(done, poisson);
        const Delayed delayed = delayed_of(run.expect_all(done));
        EXPECT_GE(delayed.count, kDueInStall);
        EXPECT_GT(delayed.median_ms, 1);
        EXPECT_NEAR(static_cast<double>(done.late), static_cast<double>(kDueInStall), 0.05 * kDueInStall);
    }
}

// With a path through the runtime, the ring may be full.
TEST(PollperfOpenLoop, ARefusedRequestIsPostedLaterAndCountsOnce) {
    OpenRun run(open_workload(kDeep), 3);
    std::mt19937 random(1);
    run.path.takes = [&](std::uint32_t n) { return random() % 10 == 0 ? 0 : n; };
    const Done done = run.open(false);
    expect_due(done, false);
    (void)run.expect_all(done);
}

TEST(PollperfOpenLoop, AQueueThatStaysFullEndsWithAnError) {
    OpenRun run(open_workload(kDeep), 2);
    run.path.takes = [](std::uint32_t) { return 0u; };
    EXPECT_THROW((void)run.open(false), MeasurementError);
}

TEST(PollperfOpenLoop, ADeviceThatNeverAnswersEndsWithAnError) {
    OpenRun run(open_workload(64), 2);
    run.path.stall_to = ~std::uint64_t{0};
    try {
        (void)run.open(true);
        ADD_FAILURE();
    } catch (const MeasurementError& error) {
        EXPECT_STREQ(error.what(), "end 0 waits for the completion of its request");
    }
}

TEST(PollperfOpenLoop, WhatIsDueBeforeTheEndCountsThoughItIsDoneAfterIt) {
    for (const std::uint32_t depth : {64u, kDeep}) {
        OpenRun run(open_workload(depth));
        run.stall_at(95);
        const Done done = run.open(false);
        expect_due(done, false);
        EXPECT_GE(done.units, of_ms(105));
        EXPECT_GE(delayed_of(run.expect_all(done)).count, 5000u);
    }
}

TEST(PollperfOpenLoop, IterationsAreExactAndEndsTakeTurns) {
    for (const bool poisson : {false, true}) {
        OpenRun run(open_workload(kDeep), 3);
        const Done done =
            run.window.run_open({.operations = 12'345}, {.per_s = kPerSecond, .poisson = poisson}, run.recorder);
        EXPECT_EQ(done.operations, 12'345u);
        for (unsigned end = 0; end < 3; ++end) {
            EXPECT_EQ(run.path.end(end).issued, 4115u);
        }
        EXPECT_NEAR(static_cast<double>(done.units) / kUnitsPerNs / 1e6, 12.345, poisson ? 0.6 : 0.01);
        (void)run.expect_all(done);
    }
}

TEST(PollperfOpenLoop, VerifiedOperationsPassAndAWrongByteIsFound) {
    for (const Op op : kOps) {
        Workload workload = verified(many(op, 64));
        workload.test = perf::Test::lat;
        OpenRun run(workload, 2);
        EXPECT_NO_THROW((void)run.window.run_open({.operations = 2000}, {.per_s = kPerSecond}, run.recorder));
        EXPECT_NO_THROW(run.check_far_ends()) << op_name(op);
        OpenRun wrong(workload, 2);
        wrong.path.spoil_number = 995;
        const auto measure = [&] {
            (void)wrong.window.run_open({.operations = 2000}, {.per_s = kPerSecond}, wrong.recorder);
            wrong.check_far_ends();
        };
        EXPECT_THROW(measure(), MeasurementError) << op_name(op);
    }
}

// The times between arrivals.
struct Gaps {
    double mean_ns = 0;
    double variation = 0;  // standard deviation divided by the mean
};
Gaps gaps_of(const std::vector<std::uint64_t>& times) {
    std::vector<double> gaps;
    for (std::size_t i = 1; i < times.size(); ++i) {
        gaps.push_back(static_cast<double>(times[i] - times[i - 1]) / kUnitsPerNs);
    }
    const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size());
    double squares = 0;
    for (const double gap : gaps) {
        squares += (gap - mean) * (gap - mean);
    }
    return {mean, std::sqrt(squares / static_cast<double>(gaps.size())) / mean};
}

std::vector<std::uint64_t> arrivals_of(bool poisson, std::uint64_t seed, bool sleeps = false) {
    OpenRun run(open_workload(kDeep));
    run.path.poll_time = of_ns(20);
    run.path.sleeps = sleeps;
    run.path.latency = of_ns(100);
    run.path.service = 0;
    const Done done = run.open(poisson, 1e5, seed);
    EXPECT_EQ(done.late, 0u);
    return run.path.posted_at;
}

TEST(PollperfOpenLoop, ArrivalsHaveTheirMeanAndTheirVariation) {
    const Gaps fixed = gaps_of(arrivals_of(false, 1));
    EXPECT_NEAR(fixed.mean_ns, 10'000, 1);
    EXPECT_LT(fixed.variation, 0.01);
    // Of 10000 exponential gaps, the mean and the variation have a standard error of one percent.
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
        const Gaps poisson = gaps_of(arrivals_of(true, seed));
        EXPECT_NEAR(poisson.mean_ns, 10'000, 400);
        EXPECT_NEAR(poisson.variation, 1, 0.05);
    }
    EXPECT_EQ(arrivals_of(true, 1), arrivals_of(true, 1));
    EXPECT_NE(arrivals_of(true, 1), arrivals_of(true, 2));
}

TEST(PollperfOpenLoop, AnIntervalNeedNotBeAWholeNumberOfUnits) {
    OpenRun run(open_workload(kDeep));
    const Done done = run.open(false, 1.9e6);  // 1052.63 units
    EXPECT_NEAR(static_cast<double>(done.operations), 190'000, 1);
}

TEST(PollperfOpenLoop, AThreadThatSleepsWakesForTheNextRequest) {
    const Gaps fixed = gaps_of(arrivals_of(false, 1, true));
    EXPECT_NEAR(fixed.mean_ns, 10'000, 1);
    EXPECT_LT(fixed.variation, 0.01);
    OpenRun run(open_workload(kDeep));
    run.path.sleeps = true;
    const Done done = run.open(true, 1e4);
    EXPECT_EQ(done.late, 0u);
    EXPECT_LT(run.path.polls, 8 * done.operations);
}

// ---- the recorder ----

constexpr double kRecorderUnitsPerS = 1e9;
constexpr std::uint64_t kMs = 1'000'000;

struct SliceSums {
    std::uint64_t operations = 0;
    double seconds = 0;
    double greatest_ns = 0;
};
SliceSums sums_of(const std::vector<Slice>& slices) {
    SliceSums sums;
    for (const Slice& slice : slices) {
        sums.operations += slice.operations;
        sums.seconds += slice.seconds;
        sums.greatest_ns = std::max(sums.greatest_ns, slice.max_ns);
    }
    return sums;
}

TEST(PollperfRecorder, ASliceHasTheFiguresOfTenMilliseconds) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    recorder.resume(5 * kMs);
    for (std::uint64_t i = 1; i <= 100; ++i) {
        recorder.add(i);
        recorder.advance(5 * kMs + i * kMs / 10, 1);
    }
    recorder.add(200, 3);
    recorder.advance(18 * kMs, 7);
    recorder.pause(18 * kMs);
    const auto [latency, slices] = recorder.take();
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_DOUBLE_EQ(slices[0].at_s, 0.010);
    EXPECT_DOUBLE_EQ(slices[0].seconds, 0.010);
    EXPECT_EQ(slices[0].operations, 100u);
    EXPECT_DOUBLE_EQ(slices[0].median_ns, 50);
    EXPECT_DOUBLE_EQ(slices[0].p99_ns, 99);
    EXPECT_DOUBLE_EQ(slices[0].max_ns, 100);
    EXPECT_DOUBLE_EQ(slices[1].at_s, 0.013);
    EXPECT_DOUBLE_EQ(slices[1].seconds, 0.003);
    EXPECT_EQ(slices[1].operations, 7u);
    EXPECT_DOUBLE_EQ(slices[1].median_ns, 200);
    EXPECT_EQ(latency.count(), 103u);
    EXPECT_DOUBLE_EQ(latency.sum(), 5650);
}

TEST(PollperfRecorder, PausesDoNotCount) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    recorder.resume(0);
    recorder.advance(6 * kMs, 3);
    recorder.pause(7 * kMs);
    recorder.resume(1000 * kMs);
    recorder.advance(1002 * kMs, 4);
    recorder.advance(1003 * kMs, 5);
    recorder.pause(1003 * kMs);
    const auto [latency, slices] = recorder.take();
    ASSERT_EQ(slices.size(), 1u);
    EXPECT_DOUBLE_EQ(slices[0].at_s, 0.010);
    EXPECT_DOUBLE_EQ(slices[0].seconds, 0.010);
    EXPECT_EQ(slices[0].operations, 12u);
}

TEST(PollperfRecorder, WhatIsTakenIsTakenOnceAndTheTimeGoesOn) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        recorder.resume(round * 1000 * kMs);
        recorder.add(7 * round);
        recorder.advance(round * 1000 * kMs + 4 * kMs, round);
        recorder.pause(round * 1000 * kMs + 5 * kMs);
        const auto [latency, slices] = recorder.take();
        ASSERT_EQ(slices.size(), 1u);
        EXPECT_EQ(slices[0].operations, round);
        EXPECT_DOUBLE_EQ(slices[0].seconds, 0.005);
        EXPECT_DOUBLE_EQ(slices[0].at_s, 0.005 * static_cast<double>(round));
        EXPECT_EQ(latency.count(), 1u);
        EXPECT_EQ(latency.greatest(), 7 * round);
    }
    const auto [latency, slices] = recorder.take();
    EXPECT_TRUE(slices.empty());
    EXPECT_EQ(latency.count(), 0u);
}

TEST(PollperfRecorder, HalvingKeepsTheSums) {
    Recorder recorder(kRecorderUnitsPerS, 1);
    recorder.resume(0);
    constexpr std::uint64_t kTurns = 5000;
    for (std::uint64_t i = 1; i <= kTurns; ++i) {
        recorder.add(i);
        recorder.advance(i * 10 * kMs, i);
    }
    recorder.pause(kTurns * 10 * kMs);
    const auto [latency, slices] = recorder.take();
    EXPECT_LE(slices.size(), 512u);
    EXPECT_GE(slices.size(), 256u);
    const SliceSums sums = sums_of(slices);
    EXPECT_EQ(sums.operations, kTurns * (kTurns + 1) / 2);
    EXPECT_NEAR(sums.seconds, 50, 1e-6);
    EXPECT_DOUBLE_EQ(sums.greatest_ns, kTurns);
    EXPECT_NEAR(slices.back().at_s, 50, 1e-6);
    for (std::size_t i = 1; i < slices.size(); ++i) {
        EXPECT_NEAR(slices[i].at_s - slices[i].seconds, slices[i - 1].at_s, 1e-6);
        EXPECT_LE(slices[i - 1].median_ns, slices[i].median_ns);
        EXPECT_LE(slices[i].median_ns, slices[i].p99_ns);
        EXPECT_LE(slices[i].p99_ns, slices[i].max_ns);
    }
    EXPECT_EQ(latency.count(), kTurns);
}

TEST(PollperfRecorder, ALatencyOfARoundTripIsHalfOfIt) {
    Recorder recorder(kRecorderUnitsPerS, 2);
    const std::vector<std::uint64_t> part(1000, 8000);  // 8 ms
    recorder.add_part(part);
    recorder.add_part(part);
    recorder.add_part(std::vector<std::uint64_t>(500, 9000));
    const auto [latency, slices] = recorder.take();
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_DOUBLE_EQ(slices[0].seconds, 0.016);
    EXPECT_EQ(slices[0].operations, 2000u);
    EXPECT_DOUBLE_EQ(slices[0].median_ns, 4000);
    EXPECT_DOUBLE_EQ(slices[1].at_s, 0.0205);
    EXPECT_DOUBLE_EQ(slices[1].seconds, 0.0045);
    EXPECT_EQ(slices[1].operations, 500u);
    EXPECT_DOUBLE_EQ(slices[1].max_ns, 4500);
    EXPECT_EQ(latency.count(), 2500u);
    EXPECT_EQ(latency.greatest(), 9000u);  // the histogram's unit is the clock's
}

}  // namespace
}  // namespace pollcore::perf
