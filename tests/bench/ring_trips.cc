// How long a message of 64 bytes to another CPU and one of 32 bytes back take, one at a time.
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>

#include "apps/pollperf/cycle_stamp.hpp"
#include "apps/pollperf/statistics.hpp"
#include "base/clock.hpp"
#include "bench.hpp"
#include "rings.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint64_t kStop = ~std::uint64_t{0};

// Clocks of some processors advance in steps of 10 ns: so the typical trip is that of groups, one after the other, of which
// only the ends are rounded.
constexpr std::size_t kGroup = 16;

/// Median and 99th percentile, in nanoseconds.
std::vector<double> figures(std::vector<std::uint64_t> trips) {
    std::vector<std::uint64_t> groups;
    for (std::size_t at = 0; at + kGroup <= trips.size(); at += kGroup) {
        groups.push_back(std::accumulate(trips.begin() + static_cast<std::ptrdiff_t>(at),
                                         trips.begin() + static_cast<std::ptrdiff_t>(at + kGroup), std::uint64_t{0}));
    }
    return {perf::summarize(std::move(groups), 1 / (cycles_per_ns() * kGroup)).typical,
            perf::summarize(std::move(trips), 1 / cycles_per_ns()).p99};
}

/// `trip(i)` is one there and back.
template <class Trip>
std::vector<std::uint64_t> timed(const Setting& setting, Trip trip) {
    constexpr std::uint64_t kWarmUp = 1000;
    constexpr std::uint64_t kMost = 1u << 18;
    std::vector<std::uint64_t> trips;
    trips.reserve(kMost);
    std::uint64_t next = 0;
    for (; next < kWarmUp; ++next) {
        trip(next);
    }
    std::uint64_t began = perf::stamp();
    const std::uint64_t until = began + cycles_from(setting.time);
    while (trips.size() < kMost && began < until) {
        trip(next++);
        const std::uint64_t now = perf::stamp();
        trips.push_back(now - began);
        began = now;
    }
    return trips;
}

/// On lines that nothing else is on, and written once: what one side writes for each trip must not be where the other looks.
struct alignas(2 * kCacheLine) Ended {
    std::atomic<bool> stop{false};
    std::uint64_t wrong = 0;
};

template <template <std::size_t, std::uint32_t> class Ring>
std::vector<double> trip(const Setting& setting) {
    auto* memory = static_cast<std::byte*>(arena(2u << 20));
    Ring<64, 1024> down(memory);
    Ring<32, 1024> back(memory + (1u << 20));
    std::vector<std::uint64_t> trips;
    Ended ended;
    run_pair(
        setting.cpus,
        [&] {
            typename Ring<64, 1024>::Writer writer(down);
            typename Ring<32, 1024>::Reader reader(back);
            std::uint64_t bits = 0;
            trips = timed(setting, [&](std::uint64_t i) {
                while (writer.template push<1>(i) == 0) {
                }
                while (reader.template pop<1>(i, bits) == 0) {
                }
            });
            ended.wrong = bits;
            ended.stop.store(true, std::memory_order_relaxed);
        },
        [&] {
            typename Ring<64, 1024>::Reader reader(down);
            typename Ring<32, 1024>::Writer writer(back);
            std::uint64_t bits = 0;
            for (std::uint64_t i = 0;; ++i) {
                while (reader.template pop<1>(i, bits) == 0) {
                    if (ended.stop.load(std::memory_order_relaxed)) {
                        return;
                    }
                }
                // What was not as it should be is sent back.
                while (writer.template push<1>(bits == 0 ? i : ~i) == 0) {
                }
            }
        });
    if (ended.wrong != 0) {
        throw std::runtime_error(std::string(Ring<64, 1024>::kName) + " delivered something that was not written");
    }
    return figures(std::move(trips));
}

struct Words {
    // Not neighbours either: some prefetchers fetch lines in pairs.
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> ping{0};
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> pong{0};
};
struct SharedWords {
    alignas(2 * kCacheLine) std::atomic<std::uint64_t> ping{0};
    std::atomic<std::uint64_t> pong{0};
};

/// Two words, each written by one side: a ring's order and nothing else of it. How far two lines are from two CPUs depends on
/// where they are, and may differ by a fifth: so it is many pairs, by turns. `kTurn` trips with one pair after the other find it in
/// each side's first cache; a ring, whose slots follow each other, never does, so what no ring can beat is a turn of 1.
template <class Pair, std::uint64_t kPairs, std::uint64_t kTurn>
std::vector<double> words_trip(const Setting& setting) {
    auto* const pairs = new (arena(2u << 20)) Pair[kPairs];
    const auto of = [pairs](std::uint64_t i) -> Pair& { return pairs[i / kTurn % kPairs]; };
    std::vector<std::uint64_t> trips;
    run_pair(
        setting.cpus,
        [&trips, setting, of] {
            std::uint64_t last = 0;
            trips = timed(setting, [&](std::uint64_t i) {
                of(i).ping.store(i + 1, std::memory_order_release);
                while (of(i).pong.load(std::memory_order_acquire) != i + 1) {
                }
                last = i + 1;
            });
            of(last).ping.store(kStop, std::memory_order_release);
        },
        [of] {
            for (std::uint64_t i = 0;; ++i) {
                std::uint64_t seen = 0;
                while ((seen = of(i).ping.load(std::memory_order_acquire)) != i + 1) {
                    if (seen == kStop) {
                        return;
                    }
                }
                of(i).pong.store(i + 1, std::memory_order_release);
            }
        });
    return figures(std::move(trips));
}

/// The reply in the request's own line, which is a ring's slot otherwise: what a completion would take that answers one request, in
/// order, and is looked for there.
std::vector<double> reply_trip(const Setting& setting) {
    constexpr std::uint32_t kSlots = 1024;
    struct alignas(kCacheLine) Line {
        union {
            Item<56> payload;
            Item<24> reply;
        };
        std::uint64_t turn;  // odd: a request; even: the reply to it
    };
    static_assert(sizeof(Line) == kCacheLine);
    auto* const lines = static_cast<Line*>(arena(1u << 20));
    const auto turn_of = [](Line& line) { return std::atomic_ref(line.turn).load(std::memory_order_acquire); };
    const auto publish = [](Line& line, std::uint64_t turn) { std::atomic_ref(line.turn).store(turn, std::memory_order_release); };
    std::vector<std::uint64_t> trips;
    Ended ended;
    run_pair(
        setting.cpus,
        [&trips, &ended, setting, lines, turn_of, publish] {
            std::uint64_t bits = 0;
            trips = timed(setting, [&](std::uint64_t i) {
                Line& line = lines[i % kSlots];
                line.payload.fill(i);
                publish(line, 2 * i + 1);
                while (turn_of(line) != 2 * i + 2) {
                }
                bits |= line.reply.differs(i + 1);
            });
            ended.wrong = bits;
            ended.stop.store(true, std::memory_order_relaxed);
        },
        [&ended, lines, turn_of, publish] {
            std::uint64_t bits = 0;
            for (std::uint64_t i = 0;; ++i) {
                Line& line = lines[i % kSlots];
                while (turn_of(line) != 2 * i + 1) {
                    if (ended.stop.load(std::memory_order_relaxed)) {
                        return;
                    }
                }
                bits |= line.payload.differs(i);
                line.reply.fill(bits == 0 ? i + 1 : ~i);
                publish(line, 2 * i + 2);
            }
        });
    if (ended.wrong != 0) {
        throw std::runtime_error("a line held something that was not written");
    }
    return figures(std::move(trips));
}

Measurement row(std::string name, std::function<std::vector<double>()> once) {
    return {.table = "round trip, 64 B there and 32 B back, ns", .row = std::move(name), .columns = {"median", "p99"}, .once = std::move(once)};
}

}  // namespace

std::vector<Measurement> ring_trips(const Setting& setting) {
    std::vector<Measurement> all;
    all.push_back(row("limit: two lines", [setting] { return words_trip<Words, 1024, 1>(setting); }));
    all.push_back(row("limit: two lines, the same ones again", [setting] { return words_trip<Words, 256, 64>(setting); }));
    all.push_back(row("limit: one line", [setting] { return words_trip<SharedWords, 1024, 1>(setting); }));
    all.push_back(row("experiment: reply in the request's line", [setting] { return reply_trip(setting); }));
    all.push_back(row(PollcoreRing<64, 1024>::kName, [setting] { return trip<PollcoreRing>(setting); }));
    all.push_back(row(BoostRing<64, 1024>::kName, [setting] { return trip<BoostRing>(setting); }));
    all.push_back(row(RteRing<64, 1024>::kName, [setting] { return trip<RteRing>(setting); }));
    all.push_back(row(RteZeroCopyRing<64, 1024>::kName, [setting] { return trip<RteZeroCopyRing>(setting); }));
    all.push_back(row(MoodycamelRing<64, 1024>::kName, [setting] { return trip<MoodycamelRing>(setting); }));
    all.push_back(row(AtomicQueueRing<64, 1024>::kName, [setting] { return trip<AtomicQueueRing>(setting); }));
    return all;
}

}  // namespace pollcore::bench
