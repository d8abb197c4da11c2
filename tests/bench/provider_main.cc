// provider-bench: measures the cost of an RDMA device's provider per operation, alone, under a worker, and on an
// application's own threads.
#include <exception>
#include <iostream>

#include <CLI/CLI.hpp>

#include "base/clock.hpp"
#include "bench_report.hpp"
#include "noise.hpp"
#include "provider_costs.hpp"

namespace pollcore::bench {
namespace {

int run(int argc, char** argv) {
    CLI::App app{"Measures what the provider of an RDMA device takes of an operation", "provider-bench"};
    std::string device;
    std::vector<std::uint32_t> cpus{0, 1};
    int repetitions = 7;
    std::string json;
    app.add_option("--device", device, "As ibv_devices prints it")->required();
    app.add_option("--cpus", cpus, "Two CPUs: where one thread measures the first")
        ->delimiter(',')
        ->expected(2)
        ->capture_default_str();
    app.add_option("--repetitions", repetitions, "Of each measurement, all by turns")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--json", json, "Write everything to this file, too");
    CLI11_PARSE(app, argc, argv);

    (void)cycles_per_ns();  // calibrates the clock
    pin(cpus[0]);
    const Cpus pair{cpus[0], cpus[1]};
    const NoiseWatch noise;
    const std::vector<Measured> measured = measure(provider_costs(device, pair), repetitions, "provider-bench", pair);
    const std::vector<Noise> complaints = noise.complaints();
    print_tables(std::cout, measured);
    for (const Noise& one : complaints) {
        std::cout << "\nToo noisy to be believed: " << one.text << '\n';
    }
    if (!json.empty()) {
        write_json(json, measured, provider_goals(measured), complaints);
    }
    return 0;
}

}  // namespace
}  // namespace pollcore::bench

int main(int argc, char** argv) {
    try {
        return pollcore::bench::run(argc, argv);
    } catch (const std::exception& error) {
        std::cerr << "provider-bench: " << error.what() << '\n';
        return 1;
    }
}
