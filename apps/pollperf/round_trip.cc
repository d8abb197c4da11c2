#include "round_trip.hpp"

#include <atomic>
#include <exception>
#include <numeric>
#include <thread>
#include <vector>

#include "cycle_stamp.hpp"
#include "figures.hpp"
#include "pollcore/limits.hpp"
#include "threads.hpp"

namespace pollcore::perf {
namespace {

constexpr std::uint32_t kWarmup = 20000;
constexpr std::uint32_t kSamplesMax = 200000;
constexpr std::uint32_t kSamplesMin = 1000;
constexpr std::uint32_t kSpinsPerLook = 1u << 12;

// The clocks of some processors advance in steps of 10 ns, a tenth of a round trip. The typical round trip is therefore
// computed from groups of consecutive round trips: the steps affect only the beginning and the end of a group.
constexpr std::size_t kGroup = 16;

double typical_ns(const std::vector<std::uint64_t>& samples) {
    std::vector<std::uint64_t> groups;
    groups.reserve(samples.size() / kGroup);
    for (std::size_t at = 0; at + kGroup <= samples.size(); at += kGroup) {
        groups.push_back(std::accumulate(samples.begin() + static_cast<std::ptrdiff_t>(at),
                                         samples.begin() + static_cast<std::ptrdiff_t>(at + kGroup), std::uint64_t{0}));
    }
    return summarize(std::move(groups), 1 / (cycles_per_ns() * static_cast<double>(kGroup))).typical;
}

// The words are two cache lines apart, because some prefetchers fetch lines in pairs.
struct Words {
    alignas(2 * kCacheLine) std::atomic<std::uint32_t> ping{0};  // written by the measuring thread
    alignas(2 * kCacheLine) std::atomic<std::uint32_t> pong{0};  // written by the other thread
    alignas(2 * kCacheLine) std::atomic<bool> stop{false};
};

void answer(Words& words) {
    std::uint32_t spins = 0;
    for (std::uint32_t i = 1; i <= kWarmup + kSamplesMax; ++i) {
        // Acquire and release pair with those of the measuring thread. The words publish no other data, so relaxed
        // would do here. But a ring needs this order, and the limit must be comparable with a ring.
        while (words.ping.load(std::memory_order_acquire) != i) {
            if (++spins == kSpinsPerLook) {
                spins = 0;
                // Relaxed: `stop` publishes no other data.
                if (words.stop.load(std::memory_order_relaxed)) {
                    return;
                }
            }
        }
        words.pong.store(i, std::memory_order_release);
    }
}

// Returns the cycles of each round trip after the warm-up, until `deadline` or kSamplesMax.
std::vector<std::uint64_t> ask(Words& words, std::chrono::steady_clock::time_point deadline) {
    std::vector<std::uint64_t> samples;
    samples.reserve(kSamplesMax);
    std::uint32_t spins = 0;
    std::uint64_t begin = stamp();
    for (std::uint32_t i = 1; i <= kWarmup + kSamplesMax; ++i) {
        words.ping.store(i, std::memory_order_release);
        while (words.pong.load(std::memory_order_acquire) != i) {
            if (++spins == kSpinsPerLook) {
                spins = 0;
                if (std::chrono::steady_clock::now() >= deadline) {
                    return samples;
                }
            }
        }
        const std::uint64_t now = stamp();
        if (i > kWarmup) {
            samples.push_back(now - begin);
        }
        begin = now;
    }
    return samples;
}

}  // namespace

std::optional<RoundTrip> measure_round_trip(std::uint32_t core, std::uint32_t other, std::chrono::milliseconds time) {
    Words words;
    std::vector<std::uint64_t> samples;
    std::exception_ptr failure;  // an exception of the other thread; read after the join
    {
        const PinnedScope pinned(core);
        std::thread partner([&] {
            try {
                const PinnedScope there(other);
                answer(words);
            } catch (...) {
                failure = std::current_exception();
            }
        });
        samples = ask(words, std::chrono::steady_clock::now() + time);
        words.stop.store(true, std::memory_order_relaxed);
        partner.join();
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
    if (samples.size() < kSamplesMin) {
        return std::nullopt;
    }
    const double typical = typical_ns(samples);
    return RoundTrip{typical, summarize(std::move(samples), 1 / cycles_per_ns()).p99, core, other};
}

}  // namespace pollcore::perf
