// The loops with many operations in flight.
//
// run() keeps Workload::tx_depth operations in flight on each sending end: it posts the next ones when earlier ones are
// done. run_open() posts each operation when it is due, however long earlier ones take, so that a stall delays all
// operations that were due meanwhile. There a latency counts from the time at which the operation was due.
//
// An operation is done when the program knows it: at its own completion or at that of a later signaled operation.
//
// Thread safety: used by one measuring thread only.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "base/clock.hpp"
#include "pollperf/cycle_stamp.hpp"
#include "pollperf/measure/messages.hpp"
#include "pollperf/measure/payload.hpp"
#include "pollperf/measure/recorder.hpp"
#include "pollperf/measure/watch.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {

/// The clock of the loops. The test of the open loop has another.
struct CycleClock {
    [[nodiscard]] static std::uint64_t now() noexcept { return stamp(); }
    [[nodiscard]] static double units_per_ns() { return cycles_per_ns(); }
};

/// When a part of a measurement ends: after so many operations of this thread, or after some time.
struct Until {
    std::uint64_t operations = std::numeric_limits<std::uint64_t>::max();
    std::chrono::nanoseconds time = std::chrono::nanoseconds::max();

    [[nodiscard]] bool by_time() const noexcept { return time != std::chrono::nanoseconds::max(); }
};

struct Done {
    std::uint64_t operations = 0;
    std::uint64_t units = 0;  ///< of the clock
    std::uint64_t late = 0;   ///< open loop: posted later than one interval after they were due
};

/// The arrivals of an open loop: `per_s` requests a second, evenly or as a Poisson process.
struct Arrivals {
    double per_s = 0;
    bool poisson = false;
    std::uint64_t seed = 1;
    double phase = 0;  ///< of even arrivals: the first is due after this share of an interval
};

template <class Path, class Clock = CycleClock>
class Window {
public:
    /// The ends 0 to `senders` - 1 send.
    Window(Path& path, const Workload& workload, Watch& watch, unsigned senders, Clock clock = {})
        : path_(path),
          workload_(workload),
          watch_(watch),
          clock_(clock),
          messages_(path, workload, watch),
          flights_(senders),
          checked_(path.ends()) {
        for (unsigned end = 0; end < senders; ++end) {
            flights_[end].seen = path.end(end).completed;
            flights_[end].since.resize(workload.tx_depth);
        }
        for (unsigned end = 0; end < path.ends(); ++end) {
            checked_[end] = path.end(end).received;
        }
    }

    /// Returns when the operations that were posted are done. With Until::time, operations that are done later than
    /// that do not count. If `stop` becomes true, the loop ends early.
    Done run(const Until& until, Recorder& recorder, const std::atomic<bool>* stop = nullptr) {
        return workload_.verify ? closed<true>(until, recorder, stop) : closed<false>(until, recorder, stop);
    }

    /// All operations that were due count, also those that were posted or done after the time.
    Done run_open(const Until& until, const Arrivals& arrivals, Recorder& recorder) {
        return workload_.verify ? open<true>(until, arrivals, recorder) : open<false>(until, arrivals, recorder);
    }

    /// Posts receives again until `stop` is true.
    void serve(const std::atomic<bool>& stop) {
        // Relaxed: `stop` publishes no other data.
        while (!stop.load(std::memory_order_relaxed)) {
            if (path_.poll(std::chrono::nanoseconds(Watch::kSleepMax)) != 0) {
                receive();
                watch_.moved();
            } else {
                watch_.attend(path_, 0, "messages");
            }
        }
    }
    /// Takes the messages that are still missing of `expected`, one number for each receiving end. Gives up when none
    /// has come for `time`.
    void finish(std::span<const std::uint64_t> expected, unsigned first_receiver, std::chrono::milliseconds time) {
        auto deadline = std::chrono::steady_clock::now() + time;
        const auto missing = [&] {
            for (std::size_t i = 0; i < expected.size(); ++i) {
                if (path_.end(first_receiver + static_cast<unsigned>(i)).arrived() < expected[i]) {
                    return true;
                }
            }
            return false;
        };
        while (missing() && std::chrono::steady_clock::now() < deadline) {
            if (path_.poll() != 0) {
                receive();
                deadline = std::chrono::steady_clock::now() + time;
            }
        }
        receive();
    }

    /// With verify: checks the bytes that the peer has written to an end by `messages` writes, as far as later ones
    /// have not replaced them.
    void check_writes(unsigned end, std::uint64_t messages) {
        const auto slots = std::min<std::uint64_t>(path_.layout().in_slots, messages);
        for (std::uint64_t number = messages - slots; number < messages; ++number) {
            messages_.check({path_.end(end).memory + path_.layout().in(number), workload_.size}, end, number + 1);
        }
    }

private:
    /// An open loop that needs so many times its time to post what was due is given up.
    static constexpr double kOverrunMost = 10;

    struct Flight {
        std::uint64_t to_post = 0;         ///< operations of the closed loop that are left
        std::uint64_t seen = 0;            ///< EndState::completed, as far as it was counted
        std::vector<std::uint64_t> since;  ///< for each operation in flight: when it was posted, or due
    };

    [[nodiscard]] std::uint64_t units(std::chrono::nanoseconds time) const {
        return static_cast<std::uint64_t>(static_cast<double>(time.count()) * clock_.units_per_ns());
    }

    // ---- the closed loop ----

    template <bool kVerify>
    Done closed(const Until& until, Recorder& recorder, const std::atomic<bool>* stop) {
        Done done;
        const std::uint64_t began = clock_.now();
        const std::uint64_t ends = until.by_time() ? began + units(until.time) : ~std::uint64_t{0};
        for (std::size_t end = 0; end < flights_.size(); ++end) {
            flights_[end].to_post = until.operations / flights_.size() + (end < until.operations % flights_.size());
        }
        std::uint64_t now = began;
        recorder.resume(began);
        // Relaxed: `stop` publishes no other data.
        while (now < ends && unfinished() && !(stop != nullptr && stop->load(std::memory_order_relaxed))) {
            bool posted = false;
            for (unsigned end = 0; end < flights_.size(); ++end) {
                Flight& flight = flights_[end];
                const std::uint32_t n = next_list(end);
                if (n == 0) {
                    continue;
                }
                const std::uint32_t taken = post<kVerify>(end, n, n == flight.to_post, now);
                flight.to_post -= taken;
                posted = posted || taken != 0;
            }
            const std::size_t polled = posted ? path_.poll() : path_.poll(Watch::kSleepMax);
            now = clock_.now();
            if (polled != 0) {
                const std::uint64_t finished = count_done<kVerify>(now, workload_.test != Test::rate, recorder);
                done.operations += finished;
                recorder.advance(now, finished);
                receive();
            }
            if (polled != 0 || posted) {
                watch_.moved();
            } else {
                watch_.idle(path_, first_busy(), "the completion of its request");
            }
        }
        recorder.pause(now);
        done.units = now - began;
        drain<kVerify>();
        return done;
    }

    /// How many operations to post now. A list waits for its room, unless nothing in flight has a completion, which
    /// would make that room.
    [[nodiscard]] std::uint32_t next_list(unsigned end) {
        const auto& state = path_.end(end);
        const auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(workload_.post_list, flights_[end].to_post));
        const auto room = static_cast<std::uint32_t>(workload_.tx_depth - state.in_flight());
        if (n <= room) {
            return n;
        }
        const std::uint32_t unsignaled = workload_.signal_every - state.until_signal;
        return state.in_flight() > unsignaled ? 0 : room;
    }

    template <bool kVerify>
    std::uint32_t post(unsigned end, std::uint32_t n, bool last, std::uint64_t since) {
        const auto& state = path_.end(end);
        for (std::uint32_t i = 0; i < n; ++i) {
            const std::uint64_t number = state.issued + i;
            flights_[end].since[number % workload_.tx_depth] = since;
            if constexpr (kVerify) {
                make(end, number);
            }
        }
        return path_.issue(end, n, last);
    }

    /// Returns how many operations are done that were not counted yet.
    template <bool kVerify>
    std::uint64_t count_done(std::uint64_t now, bool all, Recorder& recorder) {
        std::uint64_t sum = 0;
        for (unsigned end = 0; end < flights_.size(); ++end) {
            Flight& flight = flights_[end];
            const std::uint64_t completed = path_.end(end).completed;
            if (completed == flight.seen) {
                continue;
            }
            sum += completed - flight.seen;
            if constexpr (kVerify) {
                for (std::uint64_t number = flight.seen; number < completed; ++number) {
                    check_result(end, number);
                }
            }
            for (std::uint64_t number = all ? flight.seen : completed - 1; number < completed; ++number) {
                const std::uint64_t since = flight.since[number % workload_.tx_depth];
                recorder.add(now > since ? now - since : 0);
            }
            flight.seen = completed;
        }
        return sum;
    }

    [[nodiscard]] bool unfinished() {
        return std::any_of(flights_.begin(), flights_.end(),
                           [](const Flight& flight) { return flight.to_post != 0; }) ||
               in_flight();
    }
    [[nodiscard]] bool in_flight() {
        for (unsigned end = 0; end < flights_.size(); ++end) {
            if (!path_.end(end).idle()) {
                return true;
            }
        }
        return false;
    }
    [[nodiscard]] unsigned first_busy() {
        unsigned end = 0;
        while (end + 1 < flights_.size() && path_.end(end).idle()) {
            ++end;
        }
        return end;
    }

    /// Waits until nothing is in flight. An operation without a completion is followed by one that has one.
    template <bool kVerify>
    void drain() {
        Recorder unused(1e9, 1);
        for (unsigned end = 0; end < flights_.size(); ++end) {
            const auto& state = path_.end(end);
            if (!state.idle() && state.until_signal != workload_.signal_every) {
                watch_.until(path_, end, "room for its last request", [&] {
                    (void)count_done<kVerify>(0, false, unused);  // before the next request takes a buffer
                    receive();
                    return state.in_flight() < workload_.tx_depth && post<kVerify>(end, 1, true, 0) != 0;
                });
            }
        }
        for (unsigned end = 0; end < flights_.size(); ++end) {
            const auto& state = path_.end(end);
            watch_.until(path_, end, "the completion of its request", [&] {
                receive();
                return state.idle();
            });
        }
        (void)count_done<kVerify>(0, false, unused);
        receive();
    }

    // ---- the open loop ----

    template <bool kVerify>
    Done open(const Until& until, const Arrivals& arrivals, Recorder& recorder) {
        Done done;
        std::mt19937_64 random(arrivals.seed);
        std::exponential_distribution<double> exponential(1);
        const double interval = clock_.units_per_ns() * 1e9 / arrivals.per_s;
        const std::uint64_t began = clock_.now();
        const double ends =
            until.by_time() ? static_cast<double>(units(until.time)) : std::numeric_limits<double>::infinity();
        // Since the beginning. A double, so that an interval need not be a whole number of units.
        double due = arrivals.poisson ? interval * exponential(random) : interval * arrivals.phase;
        std::uint64_t to_post = until.operations;
        unsigned turn = 0;
        std::uint64_t now = began;
        recorder.resume(began);
        const auto all_posted = [&] { return to_post == 0 || due >= ends; };
        while (!all_posted() || in_flight()) {
            if (until.by_time() && static_cast<double>(now - began) > kOverrunMost * ends) [[unlikely]] {
                throw MeasurementError(
                    fmt::format("path {}, {}: {:.0f} operations a second are more than {:.0f} times "
                                "what it can do, so that the queue of those that are due never ends",
                                path_name(Path::kKind), op_name(workload_.op), arrivals.per_s, kOverrunMost));
            }
            bool posted = false;
            while (!all_posted() && static_cast<double>(now - began) >= due) {
                const auto& state = path_.end(turn);
                if (state.in_flight() == workload_.tx_depth ||
                    post<kVerify>(turn, 1, true, began + static_cast<std::uint64_t>(due)) == 0) {
                    break;
                }
                done.late += static_cast<double>(now - began) > due + interval;
                --to_post;
                posted = true;
                turn = turn + 1 == flights_.size() ? 0 : turn + 1;
                due += arrivals.poisson ? interval * exponential(random) : interval;
                now = clock_.now();
            }
            const double left_ns = (due - static_cast<double>(now - began)) / clock_.units_per_ns();
            const std::chrono::nanoseconds patience =
                all_posted() || left_ns > 1e9 || left_ns <= 0
                    ? std::chrono::nanoseconds(Watch::kSleepMax)
                    : std::chrono::nanoseconds(static_cast<std::int64_t>(left_ns));
            const std::size_t polled = posted ? path_.poll() : path_.poll(patience);
            now = clock_.now();
            if (polled != 0) {
                const std::uint64_t finished = count_done<kVerify>(now, true, recorder);
                done.operations += finished;
                recorder.advance(now, finished);
                receive();
            }
            if (polled != 0 || posted || (!in_flight() && static_cast<double>(now - began) < due)) {
                watch_.moved();
            } else {
                watch_.idle(path_, first_busy(), "the completion of its request");
            }
        }
        recorder.pause(now);
        done.units = now - began;
        return done;
    }

    // ---- what arrives ----

    void receive() {
        if (!takes_receive(workload_.op)) {
            return;
        }
        for (unsigned end = 0; end < path_.ends(); ++end) {
            if (workload_.verify && workload_.op == Op::send) {
                check_arrived(end);
            }
            messages_.give_back(end);
        }
    }

    // Messages of an unreliable transport may be lost. The first byte says which message this is, modulo 256.
    void check_arrived(unsigned end) {
        auto& state = path_.end(end);
        for (; checked_[end] < state.received; ++checked_[end]) {
            const std::byte* bytes = path_.received(end, checked_[end]);
            std::uint64_t expected = state.sequence + 1;
            if (workload_.transport != QpType::rc) {
                expected += static_cast<std::uint8_t>(load_byte(bytes) - static_cast<std::uint8_t>(expected));
            }
            state.sequence = expected;
            messages_.check({bytes, workload_.size}, end, expected);
        }
    }

    // ---- what verified operations carry ----

    void make(unsigned end, std::uint64_t number) {
        const auto out = messages_.out(end, number);
        if (is_answered(workload_.op)) {
            std::memset(out.data(), 0xff, out.size());
        } else {
            fill(out, number - path_.end(end).issued_before + 1);
        }
    }
    void check_result(unsigned end, std::uint64_t number) {
        if (workload_.op == Op::read) {
            messages_.check(messages_.out(end, number), end, 1);
        } else if (is_atomic(workload_.op)) {
            std::uint64_t value = 0;
            std::memcpy(&value, messages_.out(end, number).data(), sizeof value);
            const std::uint64_t expected = number - path_.end(end).issued_before;
            if (value != expected) {
                throw MeasurementError(fmt::format("path {}, {} {}: the word held {:#x}, not {:#x}",
                                                   path_name(Path::kKind), op_name(workload_.op), expected + 1, value,
                                                   expected));
            }
        }
    }

    Path& path_;
    const Workload workload_;
    Watch& watch_;
    Clock clock_;
    Messages<Path> messages_;
    std::vector<Flight> flights_;         ///< of the sending ends
    std::vector<std::uint64_t> checked_;  ///< of each end: how many received messages were checked
};

}  // namespace pollcore::perf
