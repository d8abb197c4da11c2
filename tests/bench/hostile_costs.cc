// The cost of a hostile neighbour for a process: the worker's cycles for each request of the process, while the
// neighbour's thread runs on another CPU. The measuring thread itself calls the worker's step(), so that only the
// worker's steps are timed.
#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "bench.hpp"
#include "neighbours.hpp"

namespace pollcore::bench {
namespace {

constexpr std::uint32_t kWindow = 32;
constexpr std::uint64_t kWarmUp = 5'000;  // slots of the neighbour that the worker takes before the measurement begins

std::vector<double> cycles_beside(const Setting& setting, const char* manners) {
    Neighbours both(Neighbours::On::software_device);
    std::atomic<bool> stop{false};
    std::thread thread([&] {
        pin(setting.cpus.there);
        for (Neighbour neighbour(both, manners); !stop.load(std::memory_order_relaxed);) {
            neighbour.turn();
        }
    });
    Session& session = both.world.session(Neighbours::kVictim);
    std::array<Completion, kWindow> done;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    std::uint64_t cycles = 0;
    std::uint64_t counted = 0;
    bool failed = false;
    bool at_work = false;  // the warm-up is over, or the worker has ended the neighbour's session
    for (std::uint64_t until = 0; !failed && (!at_work || counted == 0 || cycles_now() < until);) {
        while (submitted - completed < kWindow &&
               session.try_submit(both.write(Neighbours::kVictim)) == Refusal::none) {
            ++submitted;
        }
        const std::uint64_t began = cycles_now();
        both.world.step();
        const std::uint64_t took = cycles_now() - began;
        both.world.now += 100;
        const std::size_t n = session.poll(done);
        failed = std::any_of(done.begin(), done.begin() + static_cast<std::ptrdiff_t>(n),
                             [](const Completion& one) { return !one.ok(); });
        completed += n;
        if (at_work) {
            cycles += took;
            counted += n;
        } else if (both.taken() > kWarmUp || both.broken()) {
            at_work = true;
            until = cycles_now() + cycles_from(setting.time);
        }
    }
    stop.store(true);
    thread.join();
    if (failed) {
        throw std::runtime_error(std::string("a request failed beside a neighbour that is ") + manners);
    }
    return {static_cast<double>(cycles) / static_cast<double>(counted)};
}

}  // namespace

std::vector<Measurement> hostile_costs(const Setting& setting) {
    std::vector<Measurement> all;
    for (const char* manners : Neighbour::kManners) {
        all.push_back(
            {.table = "the worker's steps beside another process's session, software device, cycles per request",
             .row = manners,
             .columns = {"cycles"},
             .once = [setting, manners] { return cycles_beside(setting, manners); }});
    }
    return all;
}

}  // namespace pollcore::bench
