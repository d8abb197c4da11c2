// pollperf-mesh: measures between all ranks of an MPI job.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/log.hpp"
#include "pollcore/cycles.hpp"
#include "pollperf/exit_code.hpp"
#include "pollperf/mesh/mesh_command_line.hpp"
#include "pollperf/mesh/mesh_options.hpp"
#include "pollperf/mesh/mesh_report.hpp"
#include "pollperf/mesh/mesh_run.hpp"
#include "pollperf/mesh/mpi_world.hpp"
#include "pollperf/page/page.hpp"
#include "pollperf/peer/letters.hpp"
#include "pollperf/report/disturbances.hpp"
#include "pollperf/report/output_file.hpp"

namespace {

using namespace pollcore::perf;
using Json = nlohmann::json;

// For ranks that start at different times, and for opening devices.
const MpiWorld::Patience kStarting{.limit = std::chrono::seconds(120), .what = "all ranks to start"};

/// A rank that has failed ends the others, so that none of them waits for it.
class Failed {
public:
    int code = kExitOk;
    std::string text;
};

std::string dump(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Does `work` on each rank. If it fails on any, rank 0 says what has failed where. Returns the job's exit code.
template <class Work>
int on_all(MpiWorld& world, Work&& work) {
    Failed own;
    try {
        work();
    } catch (const std::invalid_argument& error) {  // ConfigError, too
        own = {kExitUsage, error.what()};
    } catch (const UsageError& error) {
        own = {kExitUsage, error.what()};
    } catch (const pollcore::ConfigError& error) {
        own = {kExitUsage, error.what()};
    } catch (const std::exception& error) {
        own = {kExitFailed, error.what()};
    }
    const auto all =
        world.all_gather(dump({{"code", own.code}, {"text", own.text}, {"name", world.name()}}), kStarting);
    int code = kExitOk;
    std::vector<std::pair<std::string, std::vector<std::string>>> texts;  // each with the ranks that say it
    for (const std::string& one : all) {
        const Json answer = Json::parse(one);
        code = std::max(code, answer.at("code").get<int>());
        if (answer.at("code") != kExitOk) {
            const auto text = answer.at("text").get<std::string>();
            const auto at =
                std::find_if(texts.begin(), texts.end(), [&](const auto& known) { return known.first == text; });
            (at == texts.end() ? texts.emplace_back(text, std::vector<std::string>()) : *at)
                .second.push_back(answer.at("name").get<std::string>());
        }
    }
    if (world.rank() == 0) {
        for (const auto& [text, names] : texts) {
            fmt::print(stderr, "pollperf-mesh: {}: {}\n",
                       names.size() == all.size() ? "each rank"
                       : names.size() == 1        ? names.front()
                                                  : fmt::format("{} and {} more", names.front(), names.size() - 1),
                       text);
        }
    }
    return code;
}

RankPlace place_of(const MpiWorld& world, const std::vector<std::string>& hosts) {
    RankPlace place{.ranks = world.size(), .local_ranks = 0, .cpus = pollcore::config::Cpus::of_this_process()};
    for (int rank = 0; rank < world.size(); ++rank) {
        if (hosts[static_cast<std::size_t>(rank)] == world.host()) {
            place.local_rank += rank < world.rank() ? 1 : 0;
            ++place.local_ranks;
        }
    }
    return place;
}

void demand_alike(MpiWorld& world, const MeshOptions& options) {
    const auto all = world.all_gather(dump(Json(settings_of(options))), kStarting);
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
        if (all[rank] != all.front()) {
            throw UsageError(
                fmt::format("rank {} has other options than rank 0; ranks may differ in device, configuration, socket, "
                            "CPU and --wait",
                            rank));
        }
    }
}

/// What rank 0 has to know of each rank.
Json facts_of(const MpiWorld& world, const MeshOptions& options, const Place& place, const RankFigures& figures) {
    return {{"host", world.host()},           {"cpu", options.core()},
            {"device", place.device()},       {"yields", options.latency.wait_on(options.path()) != Waiting::spin},
            {"facts", to_json(host_facts())}, {"figures", to_json(figures)}};
}

MeshResults results_of(const MeshOptions& options, const std::vector<std::string>& all) {
    MeshResults results;
    results.settings = settings_of(options);
    results.op = op_name(options.op());
    results.size = options.size();
    results.latency_size = options.latency_size();
    results.outlier = options.outlier;
    if (options.with_latency) {
        results.latency_ns = results.latency_p99_ns = empty_matrix(all.size());
    }
    if (options.with_bandwidth) {
        results.bandwidth_bytes_per_s = empty_matrix(all.size());
    }
    std::map<int, Incast> incast;
    for (std::size_t from = 0; from < all.size(); ++from) {
        const Json json = Json::parse(all[from]);
        const RankFigures figures = read_figures(json.at("figures"));
        results.ranks.push_back({.host = json.at("host"),
                                 .cpu = json.at("cpu"),
                                 .device = json.at("device"),
                                 .yields = json.at("yields"),
                                 .facts = read_host(json.at("facts")),
                                 .seconds = figures.seconds,
                                 .steal_ms = figures.steal_ms,
                                 .involuntary_switches = figures.involuntary_switches});
        for (const auto& [to, latency] : figures.latency) {
            (*results.latency_ns)[from][static_cast<std::size_t>(to)] = latency.median_ns;
            (*results.latency_p99_ns)[from][static_cast<std::size_t>(to)] = latency.p99_ns;
        }
        for (const auto& [to, rate] : figures.bandwidth) {
            (*results.bandwidth_bytes_per_s)[from][static_cast<std::size_t>(to)] = rate;
        }
        for (const auto& [to, rate] : figures.incast) {
            Incast& one = incast[to];
            one.to = to;
            one.senders.push_back(static_cast<int>(from));
            one.bytes_per_s.push_back(rate);
        }
        if (figures.all_to_all) {
            results.all_to_all_bytes_per_s.push_back(*figures.all_to_all);
        }
    }
    for (const auto& [to, one] : incast) {
        results.incast.push_back(one);
    }
    return results;
}

// The table was printed before, so that the figures are not lost if a file cannot be written.
void write_files(const MeshArguments& arguments, const MeshResults& results) {
    const auto document = mesh_json(results);
    if (!arguments.json.empty()) {
        write_file(arguments.json,
                   document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n", "--json");
    }
    if (!arguments.csv.empty()) {
        write_file(arguments.csv, mesh_csv(results), "--csv");
    }
    if (!arguments.report.empty()) {
        write_file(arguments.report, page({&document, 1}, "pollperf-mesh"), "--report");
    }
}

int mesh(MpiWorld& world, const MeshArguments& arguments, const std::string& command) {
    const std::string began = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    const auto hosts = world.all_gather(world.host(), kStarting);
    MeshOptions options;
    int code = on_all(world, [&] { options = resolve(arguments, place_of(world, hosts)); });
    if (code == kExitOk) {
        code = on_all(world, [&] { demand_alike(world, options); });
    }
    std::unique_ptr<Place> place;
    std::unique_ptr<MeshRun> run;
    if (code == kExitOk) {
        code = on_all(world, [&] {
            if (world.rank() == 0) {
                for (const auto& [file, option] :
                     {std::pair(&arguments.json, "--json"), std::pair(&arguments.csv, "--csv"),
                      std::pair(&arguments.report, "--report")}) {
                    if (!file->empty()) {
                        check_writable(*file, option);
                    }
                }
            }
            pollcore::set_log_level(options.latency.config.log_level);
            (void)pollcore::cycles_per_ns();  // the first call measures the clock for a while
            place = std::make_unique<Place>(options.bandwidth, std::make_shared<OwnRuntime>());
            run = std::make_unique<MeshRun>(world, options, *place, hosts);
        });
    }
    if (code != kExitOk) {
        return code;
    }
    const RankFigures figures = run->measure();
    run.reset();
    const auto all = world.all_gather(dump(facts_of(world, options, *place, figures)), kStarting);
    return on_all(world, [&] {
        if (world.rank() == 0) {
            MeshResults results = results_of(options, all);
            results.command = command;
            results.began = began;
            fmt::print("{}", mesh_text(results));
            std::fflush(stdout);
            write_files(arguments, results);
        }
    });
}

/// Whether this process speaks for the job before MPI has started. Without mpirun or srun there is no variable.
bool speaks() {
    for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
        if (const char* const rank = std::getenv(name)) {
            return std::string(rank) == "0";
        }
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const MeshLine line = parse_mesh_command_line(argc, argv);
    if (!line.arguments) {
        if (speaks()) {
            fmt::print(line.exit_code == kExitOk ? stdout : stderr, "{}", line.text);
        }
        return line.exit_code;
    }
    std::string command = "pollperf-mesh";
    for (int i = 1; i < argc; ++i) {
        command.append(" ").append(argv[i]);
    }
    MpiWorld world(argc, argv);
    try {
        return mesh(world, *line.arguments, command);
    } catch (const std::exception& error) {
        fmt::print(stderr, "pollperf-mesh: {}: {}\n", world.name(), error.what());
        std::fflush(stderr);
        world.abort(kExitFailed);
    }
}
