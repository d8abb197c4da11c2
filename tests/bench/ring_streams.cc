// Measures how many items per second go through a ring when one thread only writes and another only reads.
#include <stdexcept>
#include <string>

#include "apps/pollperf/cycle_stamp.hpp"
#include "arena.hpp"
#include "base/clock.hpp"
#include "base/look.hpp"
#include "bench.hpp"
#include "rings.hpp"

namespace pollcore::bench {

namespace {

/// Returns millions of items per second.
template <class Ring, std::size_t N>
[[gnu::noinline]] double stream(const Setting& setting) {
    constexpr std::uint64_t kBetweenLooks = 4096;
    Ring ring(arena(1u << 20));
    std::atomic<std::uint64_t> end{~std::uint64_t{0}};
    Differences wrong;
    std::uint64_t written = 0;
    std::uint64_t began = 0;
    std::uint64_t ended = 0;
    run_pair(
        setting.cpus,
        [&] {
            typename Ring::Writer writer(ring);
            began = perf::stamp();
            const std::uint64_t until = began + cycles_from(setting.time);
            std::uint64_t next = 0;
            do {
                for (const std::uint64_t stop = next + kBetweenLooks; next < stop;) {
                    const std::size_t n = writer.template push<N>(next);
                    next += n;
                    if (n == 0) {
                        delay_look(kBetweenLooks);  // as the runtime's waiting loops do: see base/look.hpp
                    }
                }
            } while (perf::stamp() < until);
            writer.finish();
            written = next;
            end.store(next, std::memory_order_release);
        },
        [&] {
            typename Ring::Reader reader(ring);
            std::uint64_t next = 0;
            Differences differences;
            for (;;) {
                const std::size_t n = reader.template pop<N>(next, differences);
                next += n;
                if (n == 0) {
                    if (next >= end.load(std::memory_order_acquire)) {
                        break;
                    }
                    delay_look(kBetweenLooks);
                }
            }
            ended = perf::stamp();
            wrong = differences;
        });
    if (wrong.any()) {
        throw std::runtime_error(std::string(Ring::kName) + " delivered something that was not written");
    }
    return static_cast<double>(written) / (static_cast<double>(ended - began) / cycles_per_ns()) * 1e3;
}

template <template <std::size_t, std::uint32_t> class Ring, std::size_t Bytes>
void add(std::vector<Measurement>& all, const Setting& setting) {
    all.push_back({.table = "ring, " + std::to_string(Bytes) + " B, million items/s",
                   .row = Ring<Bytes, 1024>::kName,
                   .columns = {"1024, one", "1024, by 32", "4096, one", "4096, by 32"},
                   .once =
                       [setting] {
                           return std::vector{
                               stream<Ring<Bytes, 1024>, 1>(setting), stream<Ring<Bytes, 1024>, 32>(setting),
                               stream<Ring<Bytes, 4096>, 1>(setting), stream<Ring<Bytes, 4096>, 32>(setting)};
                       },
                   .between_cpus = true});
}

template <std::size_t Bytes>
void add_all(std::vector<Measurement>& all, const Setting& setting) {
    add<StreamLimit, Bytes>(all, setting);
    add<PollcoreRing, Bytes>(all, setting);
    add<BoostRing, Bytes>(all, setting);
    add<RteRing, Bytes>(all, setting);
    add<RteZeroCopyRing, Bytes>(all, setting);
    add<MoodycamelRing, Bytes>(all, setting);
    add<AtomicQueueRing, Bytes>(all, setting);
}

}  // namespace

std::vector<Measurement> ring_streams(const Setting& setting) {
    std::vector<Measurement> all;
    add_all<64>(all, setting);
    add_all<32>(all, setting);
    return all;
}

}  // namespace pollcore::bench
