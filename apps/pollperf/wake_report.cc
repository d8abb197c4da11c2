// The options of `pollperf wake`, and its report.
#include <iterator>

#include <fmt/format.h>

#include "config/cpus.hpp"
#include "config/units.hpp"
#include "cpu_choice.hpp"
#include "option_values.hpp"
#include "place_options.hpp"
#include "wake.hpp"

namespace pollcore::perf {
namespace {

constexpr std::uint32_t kIterations = 1000;
constexpr std::uint32_t kRounds = 5;

std::vector<IdleLadder> usual_ladders() {
    using namespace std::chrono_literals;
    return {IdlePolicy::spin, IdlePolicy::pause, IdlePolicy::yield,
            IdleLadder{{IdlePolicy::spin, 20us}, {IdlePolicy::pause, 200us}, {IdlePolicy::event}}, IdlePolicy::event};
}

std::string microseconds(double ns) {
    return fmt::format("{:.1f} us", ns / 1e3);
}
std::string percent(const std::optional<double>& share) {
    return share ? fmt::format("{:.1f}%", 100 * *share) : "";
}

}  // namespace

WakeOptions resolve(const WakeArguments& arguments) {
    return resolve(arguments, config::Cpus::of_this_process());
}

WakeOptions resolve(const WakeArguments& arguments, const config::Cpus& cpus) {
    WakeOptions options;
    options.device = device_named(arguments.device);
    if (cpus.one_for_all()) {
        throw UsageError(fmt::format(
            "wake measures how one CPU waits for another, and this process may run on CPU {} only; pollperf lat "
            "can do with one",
            config::print_cpu_list(cpus.allowed)));
    }
    const Placement placement = place({.role = Role::both,
                                       .needs_worker = true,
                                       .allowed = cpus.allowed,
                                       .bound = cpus.bound,
                                       .workers = {},
                                       .core = arguments.core,
                                       .worker_core = arguments.worker_core});
    options.core = placement.core;
    options.worker_core = placement.worker;
    options.share_core = arguments.share_core;
    for (const std::string& text : arguments.wait) {
        options.ladders.push_back(parse_idle("--wait", text));
    }
    if (options.ladders.empty()) {
        options.ladders = usual_ladders();
    }
    options.rounds = kRounds;
    options.iterations = arguments.iterations.value_or(kIterations);
    if (options.iterations < options.rounds || options.iterations > 1'000'000) {
        throw UsageError(fmt::format("--iters {}: it takes {} to 1000000", options.iterations, options.rounds));
    }
    auto gap = config::parse_duration(arguments.gap);
    if (const auto* reason = std::get_if<config::Reason>(&gap)) {
        throw UsageError(
            fmt::format("--gap {}: {}; it takes {}", arguments.gap, reason->text, config::kDurationExample));
    }
    const auto ns = std::get<std::chrono::nanoseconds>(gap);
    if (ns < std::chrono::microseconds(100) || ns > std::chrono::seconds(1)) {
        throw UsageError(fmt::format("--gap {}: it takes 100us to 1s", arguments.gap));
    }
    options.gap = std::chrono::duration_cast<std::chrono::microseconds>(ns);
    options.json = arguments.json;
    return options;
}

std::optional<double> WakeResults::worker_ratio() const {
    for (const WakeRow& row : workers) {
        if (row.how == "event") {
            return row.latency.typical / bare_worker.latency.typical;
        }
    }
    return std::nullopt;
}

std::string report(const WakeOptions& options, const WakeResults& results) {
    std::string text;
    const auto out = std::back_inserter(text);
    fmt::format_to(out, "pollperf wake on {}: an operation every {}, {} of each kind in {} rounds\n\n", results.device,
                   config::print_duration(options.gap.count(), 1000), options.iterations, options.rounds);
    fmt::format_to(out,
                   "| the worker waits by | median | 99% | its CPU meanwhile | its CPU when idle | at full load |\n"
                   "|---|---|---|---|---|---|\n");
    const auto row = [&](const WakeRow& one) {
        fmt::format_to(out, "| {} | {} | {} | {} | {} | {} |\n", one.how, microseconds(one.latency.typical),
                       microseconds(one.latency.p99), percent(one.cpu), percent(one.cpu_idle),
                       one.full_load ? fmt::format("{:.2f} M/s", *one.full_load / 1e6) : "");
    };
    for (const WakeRow& one : results.workers) {
        row(one);
    }
    row(results.bare_worker);
    fmt::format_to(out, "\n| the application waits by | median | 99% |\n|---|---|---|\n");
    for (const WakeRow* one : {&results.application, &results.bare_application}) {
        fmt::format_to(out, "| {} | {} | {} |\n", one->how, microseconds(one->latency.typical),
                       microseconds(one->latency.p99));
    }
    fmt::format_to(out, "\n");
    if (const auto ratio = results.worker_ratio()) {
        fmt::format_to(out, "a worker that sleeps is woken in {:.2f} of the time of eventfd and epoll, ", *ratio);
    }
    fmt::format_to(out, "an application in {:.2f}\n\n", results.application_ratio());
    fmt::format_to(out, "ran on\n  machine   {}, {} CPUs, {}{}\n  threads   application on CPU {}, worker on CPU {}\n",
                   results.machine.cpu_model, results.machine.cpus_online, results.machine.kernel,
                   results.steal_ms > 0 ? fmt::format("; its hypervisor gave {} ms to others", results.steal_ms) : "",
                   options.core, options.worker_core);
    return text;
}

}  // namespace pollcore::perf
