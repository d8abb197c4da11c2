// The duration of a round trip: a message of 64 bytes goes to another CPU and a message of 32 bytes comes back, one at
// a time.
#include <atomic>
#include <stdexcept>
#include <string>

#include "arena.hpp"
#include "bench.hpp"
#include "ring_rows.hpp"
#include "rings.hpp"
#include "two_lines.hpp"

namespace pollcore::bench {
namespace {

/// Written only at the end. It has its own cache lines, so that it never shares a line with data that a CPU writes on
/// each trip.
struct alignas(2 * kCacheLine) Ended {
    std::atomic<bool> stop{false};
    bool wrong = false;
};

/// Prefetches the line of the writer's next slot, if the ring offers that.
template <class Writer>
void ask_for_next(Writer& writer, const Waits& waits) {
    if constexpr (requires { writer.prefetch(); }) {
        if (waits.settles) {
            writer.prefetch();
        }
    }
}

template <template <std::size_t, std::uint32_t> class Ring>
std::vector<double> trip(const Cpus& cpus, std::chrono::nanoseconds time, const Waits& waits) {
    auto* memory = static_cast<std::byte*>(arena(2u << 20));
    Ring<64, 1024> down(memory);
    Ring<32, 1024> back(memory + (1u << 20));
    std::vector<std::uint64_t> trips;
    Ended ended;
    run_pair(
        cpus,
        [&] {
            typename Ring<64, 1024>::Writer writer(down);
            typename Ring<32, 1024>::Reader reader(back);
            Differences wrong;
            trips = timed_trips(time, [&](std::uint64_t i) {
                while (writer.template push<1>(i) == 0) {
                }
                ask_for_next(writer, waits);
                waits.begin();
                while (reader.template pop<1>(i, wrong) == 0) {
                    waits.again();
                }
            });
            ended.wrong = wrong.any();
            ended.stop.store(true, std::memory_order_relaxed);
        },
        [&] {
            typename Ring<64, 1024>::Reader reader(down);
            typename Ring<32, 1024>::Writer writer(back);
            Differences wrong;
            for (std::uint64_t i = 0;; ++i) {
                ask_for_next(writer, waits);
                waits.begin();
                while (reader.template pop<1>(i, wrong) == 0) {
                    waits.again();
                    if (ended.stop.load(std::memory_order_relaxed)) {
                        return;
                    }
                }
                // Answers a wrong item with a wrong number.
                while (writer.template push<1>(wrong.any() ? ~i : i) == 0) {
                }
            }
        });
    if (ended.wrong) {
        throw std::runtime_error(std::string(Ring<64, 1024>::kName) + " delivered something that was not written");
    }
    return trip_figures(std::move(trips));
}

Measurement row(std::string name, std::function<std::vector<double>()> once) {
    return {.table = "round trip, 64 B there and 32 B back, ns, each as it waits best",
            .row = std::move(name),
            .columns = {"median", "p99"},
            .once = std::move(once),
            .between_cpus = true};
}

template <template <std::size_t, std::uint32_t> class Ring>
Measurement row_of(const Setting& setting) {
    return row(Ring<64, 1024>::kName, [setting] {
        return with_best_waits(setting.time, [&setting](std::chrono::nanoseconds part, const Waits& waits) {
            return trip<Ring>(setting.cpus, part, waits);
        });
    });
}

}  // namespace

std::vector<Measurement> ring_trips(const Setting& setting) {
    std::vector<Measurement> all;
    all.push_back(row(kTwoLines, [setting] { return best_two_lines(setting.cpus, setting.time); }));
    all.push_back(
        row(kTwoLinesHasty, [setting] { return two_lines<Words, 1024, 1>(setting.cpus, setting.time, kNoWaits); }));
    all.push_back(row("limit: one line, looked at as fast as can be",
                      [setting] { return two_lines<SharedWords, 1024, 1>(setting.cpus, setting.time, kNoWaits); }));
    all.push_back(row_of<PollcoreRing>(setting));
    all.push_back(row_of<BoostRing>(setting));
    all.push_back(row_of<RteRing>(setting));
    all.push_back(row_of<RteZeroCopyRing>(setting));
    all.push_back(row_of<MoodycamelRing>(setting));
    all.push_back(row_of<AtomicQueueRing>(setting));
    return all;
}

}  // namespace pollcore::bench
