// The hop: the way of one operation through a worker on another CPU, with nothing else in flight.
#include <stdexcept>

#include "apps/pollperf/cycle_stamp.hpp"
#include "apps/pollperf/statistics.hpp"
#include "base/clock.hpp"
#include "running.hpp"

namespace pollcore::bench {
namespace {

std::vector<double> one_in_flight(const Setting& setting) {
    Running running(setting.cpus);
    Session& session = running.session();
    WorkRequest request = running.request(0);
    std::vector<std::uint64_t> samples;
    std::vector<std::uint64_t> groups;
    constexpr int kGroup = 16;
    Completion completion;
    const std::uint64_t until = perf::stamp() + cycles_from(setting.time);
    std::uint64_t began = perf::stamp();
    std::uint64_t group = began;
    for (std::uint64_t i = 0; began < until; ++i) {
        request.tag = i;
        if (session.try_submit(request) != Refusal::none) {
            throw std::runtime_error("a request was refused with nothing in flight");
        }
        while (session.poll({&completion, 1}) == 0) {
        }
        if (completion.tag != i || !completion.ok()) {
            throw std::runtime_error("something else completed than what was submitted");
        }
        const std::uint64_t now = perf::stamp();
        if (i >= 1000) {
            samples.push_back(now - began);
            if (i % kGroup == 0) {
                groups.push_back(now - group);
            }
        }
        if (i % kGroup == 0) {
            group = now;
        }
        began = now;
    }
    groups.erase(groups.begin());
    return {perf::summarize(std::move(groups), 1 / (cycles_per_ns() * kGroup)).typical,
            perf::summarize(std::move(samples), 1 / cycles_per_ns()).p99};
}

}  // namespace

std::vector<Measurement> hops(const Setting& setting) {
    return {{.table = "hop: one operation in flight through a worker on another CPU, device that completes at once, ns",
             .row = "pollcore",
             .columns = {"median", "p99"},
             .once = [setting] { return one_in_flight(setting); }}};
}

}  // namespace pollcore::bench
