#include "program.hpp"

#include <algorithm>
#include <exception>
#include <iostream>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/clock.hpp"
#include "bench_report.hpp"
#include "hardware_counters.hpp"
#include "noise.hpp"

namespace pollcore::bench {
namespace {

int measure_and_tell(const Program& program, int argc, char** argv) {
    CLI::App app{program.about, program.name};
    Setting setting;
    std::vector<std::uint32_t> cpus{setting.cpus.here, setting.cpus.there};
    int repetitions = 7;
    std::uint32_t time_ms = 30;
    std::string json;
    std::vector<std::string> parts;
    std::vector<std::string> known;
    for (const Part& part : program.parts) {
        known.emplace_back(part.name);
    }
    app.add_option("--cpus", cpus, "Two CPUs: the application's and the worker's")
        ->delimiter(',')
        ->expected(2)
        ->capture_default_str();
    app.add_option("--repetitions", repetitions, "Of each measurement, all by turns")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--time", time_ms, "Milliseconds that one measurement takes")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    app.add_option("--only", parts, "Parts, with commas")->delimiter(',')->check(CLI::IsMember(known));
    app.add_option("--json", json, "Write everything to this file, too");
    CLI11_PARSE(app, argc, argv);
    setting.cpus = {cpus[0], cpus[1]};
    setting.time = std::chrono::milliseconds(time_ms);

    (void)cycles_per_ns();  // calibrates the clock
    pin(setting.cpus.here);
    std::vector<Measurement> measurements;
    for (const Part& part : program.parts) {
        if (parts.empty() || std::find(parts.begin(), parts.end(), part.name) != parts.end()) {
            for (Measurement& one : part.make(setting)) {
                measurements.push_back(std::move(one));
            }
        }
    }

    const NoiseWatch noise;
    const std::vector<Measured> measured = measure(measurements, repetitions, program.name, setting.cpus);
    std::vector<Noise> complaints = noise.complaints();
    for (Noise& one : restlessness(measured)) {
        complaints.push_back(std::move(one));
    }

    print_tables(std::cout, measured);
    if (const HardwareCounters counters; !counters.available()) {
        std::cout << fmt::format("\nThis machine's CPU counts neither instructions nor cache misses for us ({}).\n",
                                 counters.why_not());
    }
    for (bool first = true; const Noise& one : complaints) {
        std::cout << (std::exchange(first, false) ? "\nToo noisy to be believed:\n" : "") << "- " << one.text << '\n';
    }
    if (!json.empty()) {
        write_json(json, measured, program.goals(measured), complaints);
    }
    return 0;
}

}  // namespace

int run(const Program& program, int argc, char** argv) {
    try {
        return measure_and_tell(program, argc, argv);
    } catch (const std::exception& error) {
        std::cerr << program.name << ": " << error.what() << '\n';
        return 1;
    }
}

}  // namespace pollcore::bench
