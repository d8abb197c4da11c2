// The hop: one operation through a worker on another CPU, with nothing else in flight.
#include <stdexcept>

#include "apps/pollperf/cycle_stamp.hpp"
#include "apps/pollperf/figures.hpp"
#include "base/clock.hpp"
#include "ring_rows.hpp"
#include "running.hpp"
#include "two_lines.hpp"

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
        while (session.poll({&completion, 1}, std::chrono::seconds(1)) == 0) {
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
    std::vector<Measurement> all;
    const auto add = [&](const char* name, std::function<std::vector<double>()> once) {
        all.push_back(
            {.table = "hop: one operation in flight through a worker on another CPU, device that completes at once, ns",
             .row = name,
             .columns = {"median", "p99"},
             .once = std::move(once),
             .between_cpus = true});
    };
    add(kTwoLines, [setting] { return best_two_lines(setting.cpus, setting.time); });
    add(kTwoLinesHasty, [setting] { return two_lines<Words, 1024, 1>(setting.cpus, setting.time, kNoWaits); });
    add(kOurs, [setting] { return one_in_flight(setting); });
    return all;
}

}  // namespace pollcore::bench
