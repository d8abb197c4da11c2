// What pollperf-mesh prints and writes, its command line, and its options.
#include "pollperf/mesh/mesh_report.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/mesh/mesh_command_line.hpp"
#include "pollperf/mesh/mesh_options.hpp"
#include "pollperf/page/page.hpp"

namespace pollcore::perf {
namespace {

using Json = nlohmann::ordered_json;

/// A latency of 2000 ns and a bandwidth of 10 GB/s between all ranks, with a little difference.
MeshResults results_of(std::size_t ranks, std::size_t ranks_of_host = 1) {
    MeshResults results{.command = "pollperf-mesh -d mlx5_0",
                        .began = "2026-11-29T07:20:00Z",
                        .settings = {{"path", "direct"}, {"size", "65536"}},
                        .op = "write",
                        .size = 65536,
                        .latency_size = 8};
    results.latency_ns = results.latency_p99_ns = results.bandwidth_bytes_per_s = empty_matrix(ranks);
    for (std::size_t from = 0; from < ranks; ++from) {
        results.ranks.push_back({.host = "node" + std::to_string(from / ranks_of_host),
                                 .cpu = static_cast<std::uint32_t>(from % ranks_of_host),
                                 .device = "mlx5_0",
                                 .seconds = 1});
        for (std::size_t to = 0; to < ranks; ++to) {
            if (from != to) {
                const auto little = static_cast<double>((from * 7 + to * 3) % 5);
                (*results.latency_ns)[from][to] = 2000 + little * 10;
                (*results.latency_p99_ns)[from][to] = 4000 + little * 10;
                (*results.bandwidth_bytes_per_s)[from][to] = 10e9 - little * 1e7;
            }
        }
        results.all_to_all_bytes_per_s.push_back(5e9 + static_cast<double>(from) * 1e6);
    }
    for (std::size_t to = 0; to < ranks; ++to) {
        Incast& one = results.incast.emplace_back(Incast{.to = static_cast<int>(to)});
        for (std::size_t from = 0; from < ranks; ++from) {
            if (from != to) {
                one.senders.push_back(static_cast<int>(from));
                one.bytes_per_s.push_back(10e9 / static_cast<double>(ranks - 1));
            }
        }
    }
    return results;
}

std::size_t widest_line(const std::string& text) {
    std::size_t widest = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        widest = std::max(widest, line.size());
        EXPECT_FALSE(line.ends_with(' ')) << "'" << line << "'";
    }
    return widest;
}

std::set<std::pair<int, int>> pairs_of(const std::vector<Outlier>& all, const std::string& what) {
    std::set<std::pair<int, int>> pairs;
    for (const Outlier& one : all) {
        if (one.what == what) {
            pairs.insert({one.from, one.to});
        }
    }
    return pairs;
}

using Pairs = std::set<std::pair<int, int>>;

TEST(MeshOutliers, AWholeMeshHasNone) {
    EXPECT_TRUE(outliers(results_of(8)).empty());
    EXPECT_TRUE(outliers(results_of(2)).empty());
}

TEST(MeshOutliers, AreNamedWithTheirRanksAndHosts) {
    MeshResults results = results_of(8);
    (*results.latency_ns)[2][5] = 3000;
    (*results.bandwidth_bytes_per_s)[6][1] = 4e9;
    const auto all = outliers(results);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].what, "bandwidth");  // the worse one
    EXPECT_EQ(all[0].text,
              "The bandwidth from rank 6 (node6) to rank 1 (node1) is 4.00 GB/s, 60% worse than the median "
              "9.98 GB/s of all pairs.");
    EXPECT_EQ(pairs_of(all, "latency"), (Pairs{{2, 5}}));
    EXPECT_EQ(all[1].value, 3000);
    EXPECT_EQ(all[1].median, 2020);
}

TEST(MeshOutliers, ABetterPairIsNone) {
    MeshResults results = results_of(8);
    (*results.latency_ns)[2][5] = 500;
    (*results.bandwidth_bytes_per_s)[6][1] = 40e9;
    EXPECT_TRUE(outliers(results).empty());
}

TEST(MeshOutliers, HaveToBeWorseThanTheShareAndThanTheSpread) {
    MeshResults results = results_of(8);
    (*results.latency_ns)[2][5] = 2300;  // far outside the spread, but less than 20% worse
    EXPECT_TRUE(outliers(results).empty());
    results.outlier = 0.1;
    EXPECT_EQ(pairs_of(outliers(results), "latency"), (Pairs{{2, 5}}));

    MeshResults wide = results_of(8);  // half of the pairs takes much longer: that is the spread, and no outlier
    for (std::size_t from = 0; from < 8; ++from) {
        for (std::size_t to = 0; to < 8; ++to) {
            if ((from + to) % 2 == 1) {
                (*wide.latency_ns)[from][to] = 4000;
            }
        }
    }
    (*wide.latency_ns)[1][3] = 4500;
    EXPECT_TRUE(outliers(wide).empty());
}

TEST(MeshOutliers, PairsWithinHostsAreComparedWithEachOther) {
    MeshResults results = results_of(8, 2);  // 4 hosts
    for (std::size_t rank = 0; rank < 8; ++rank) {
        (*results.latency_ns)[rank][rank ^ 1] = 9000;  // all ways within a host are slow
    }
    EXPECT_TRUE(outliers(results).empty());
    (*results.latency_ns)[4][5] = 20000;
    const auto all = outliers(results);
    EXPECT_EQ(pairs_of(all, "latency"), (Pairs{{4, 5}}));
    EXPECT_NE(all.front().text.find("the pairs within hosts"), std::string::npos) << all.front().text;
}

TEST(MeshText, HasTheMatricesAndNamesOutliers) {
    MeshResults results = results_of(4);
    (*results.latency_ns)[3][0] = 9000;
    (*results.bandwidth_bytes_per_s)[1][2] = 123e6;
    const std::string text = mesh_text(results);
    EXPECT_NE(text.find("           3    9.00!"), std::string::npos) << text;
    EXPECT_NE(text.find("0.12!"), std::string::npos) << text;
    EXPECT_NE(text.find("The latency from rank 3 (node3) to rank 0 (node0) is 9.00 us, 4.43 times the median 2.03 us"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("all to all, write of 65536 bytes: 20.0 GB/s together"), std::string::npos) << text;
    EXPECT_EQ(text.find("before you believe"), std::string::npos) << text;
}

TEST(MeshText, NoLineIsWiderThanTheReport) {
    for (const std::size_t ranks : {2u, 8u, 12u, 13u, 36u, 37u, 200u}) {
        MeshResults results = results_of(ranks);
        results.command = std::string(300, 'c') + " and more";
        results.ranks.front().host = std::string(100, 'h');
        results.ranks.front().device = std::string(200, 'd');
        for (auto& row : *results.latency_ns) {
            for (auto& cell : row) {
                cell = cell ? std::optional(*cell * 123456) : cell;
            }
        }
        (*results.latency_ns)[0][1] = 9e12;
        EXPECT_LE(widest_line(mesh_text(results)), 120u) << ranks;
    }
}

TEST(MeshText, ManyOutliersAreCounted) {
    MeshResults results = results_of(20);
    for (std::size_t to = 1; to < 20; ++to) {
        (*results.latency_ns)[0][to] = 9000;
        (*results.latency_ns)[to][0] = 8000;
    }
    EXPECT_NE(mesh_text(results).find("18 more; --json has them."), std::string::npos) << mesh_text(results);
}

TEST(MeshText, LeavesOutWhatWasNotMeasured) {
    MeshResults results = results_of(3);
    results.latency_ns.reset();
    results.bandwidth_bytes_per_s.reset();
    results.all_to_all_bytes_per_s.clear();
    const std::string text = mesh_text(results);
    EXPECT_EQ(text.find("latency"), std::string::npos) << text;
    EXPECT_EQ(text.find("all to all"), std::string::npos) << text;
    EXPECT_EQ(text.find("stands out"), std::string::npos) << text;
    EXPECT_NE(text.find("many to one"), std::string::npos) << text;
}

TEST(MeshWarnings, TellOfSharedCpusAndOfDisturbances) {
    MeshResults results = results_of(4, 4);
    EXPECT_TRUE(mesh_warnings(results).empty());
    results.ranks[3].cpu = 0;
    results.ranks[2].steal_ms = 500;
    results.ranks[1].involuntary_switches = 700;
    const auto all = mesh_warnings(results);
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[0].find("2 ranks share CPU 0 of node0"), 0u) << all[0];
    EXPECT_NE(all[1].find("rank 2"), std::string::npos) << all[1];
    EXPECT_NE(all[1].find("50.0%"), std::string::npos) << all[1];
    EXPECT_NE(all[2].find("rank 1 on node0 off its CPU 700 times"), std::string::npos) << all[2];
    results.ranks[1].yields = true;  // the kernel counts each yield
    EXPECT_EQ(mesh_warnings(results).size(), 2u);
    (*results.bandwidth_bytes_per_s)[1][2] = 0;
    EXPECT_NE(mesh_warnings(results)[1].find("No operation from rank 1 (node0) to rank 2 (node0) was done"),
              std::string::npos);
}

TEST(MeshJson, HasWhatThePageReads) {
    MeshResults results = results_of(3);
    (*results.bandwidth_bytes_per_s)[0][1] = 1e9;
    const Json json = mesh_json(results);
    EXPECT_EQ(json["program"], "pollperf-mesh");
    EXPECT_EQ(json["format"], 2);
    EXPECT_EQ(json["settings"]["path"], "direct");
    EXPECT_EQ(json["ranks"][2]["rank"], 2);
    EXPECT_EQ(json["ranks"][2]["host"], "node2");
    EXPECT_EQ(json["latency_ns"][1][0], 2020.0);
    EXPECT_TRUE(json["latency_ns"][1][1].is_null());
    EXPECT_EQ(json["latency_p99_ns"][1][0], 4020.0);
    EXPECT_EQ(json["incast"].size(), 3u);
    EXPECT_EQ(json["incast"][1]["senders"], (std::vector{0, 2}));
    EXPECT_EQ(json["incast"][1]["bytes_per_s"], 10e9);
    EXPECT_EQ(json["all_to_all"]["per_rank_bytes_per_s"].size(), 3u);
    ASSERT_EQ(json["outliers"].size(), 1u);
    EXPECT_EQ(json["outliers"][0]["what"], "bandwidth");
    EXPECT_TRUE(json["warnings"].empty());
    EXPECT_NO_THROW((void)page({&json, 1}, "a mesh"));
}

TEST(MeshCsv, HasALineForEachPair) {
    MeshResults results = results_of(3);
    (*results.latency_ns)[2][1] = 8000;
    results.bandwidth_bytes_per_s.reset();
    results.ranks[1].host = "a,b";
    std::istringstream lines(mesh_csv(results));
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) {
        all.push_back(line);
    }
    ASSERT_EQ(all.size(), 7u);
    EXPECT_EQ(all[1], "0,node0,1,\"a,b\",2030.000,4030.000,,0,0");
    EXPECT_EQ(all[6], "2,node2,1,\"a,b\",8000.000,4020.000,,1,0");
}

// ---- the command line and the options ----

MeshArguments parsed(std::vector<const char*> words) {
    words.insert(words.begin(), "pollperf-mesh");
    const MeshLine line = parse_mesh_command_line(static_cast<int>(words.size()), words.data());
    EXPECT_TRUE(line.arguments) << line.text;
    return line.arguments.value_or(MeshArguments());
}
RankPlace place_of(int ranks, int local_rank = 0, std::set<std::uint32_t> bound = {}) {
    std::set<std::uint32_t> cpus;
    for (std::uint32_t cpu = 0; cpu < 8; ++cpu) {
        cpus.insert(cpu);
    }
    return {.ranks = ranks,
            .local_rank = local_rank,
            .local_ranks = ranks,
            .cpus = {.online = cpus, .allowed = cpus, .bound = bound.empty() ? cpus : bound}};
}
std::string refusal(const std::vector<const char*>& words, const RankPlace& place = place_of(4)) {
    try {
        (void)resolve(parsed(words), place);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(MeshOptions, HaveDefaults) {
    const MeshOptions options = resolve(parsed({"-d", "mlx5_0"}), place_of(4));
    EXPECT_EQ(options.path(), PathKind::direct);
    EXPECT_EQ(options.op(), Op::write);
    EXPECT_EQ(options.size(), 65536u);
    EXPECT_EQ(options.latency_size(), 8u);
    EXPECT_EQ(options.duration, std::chrono::milliseconds(200));
    EXPECT_EQ(options.iterations, 0u);
    EXPECT_EQ(options.bandwidth.tx_depth, 128u);
    EXPECT_EQ(resolve(parsed({"-d", "mlx5_0", "-t", "3"}), place_of(4)).bandwidth.tx_depth, 3u);
    EXPECT_EQ(options.latency.wait, Waiting::spin);
    EXPECT_EQ(options.bandwidth.role, Role::client);
    EXPECT_TRUE(options.with_latency && options.with_bandwidth && options.with_incast && options.with_all_to_all);
    EXPECT_DOUBLE_EQ(options.outlier, 0.2);
}

TEST(MeshOptions, RanksOfAHostTakeItsCpusInTurn) {
    const auto core = [](int local_rank, const std::vector<const char*>& words, std::set<std::uint32_t> bound = {}) {
        return resolve(parsed(words), place_of(12, local_rank, std::move(bound))).core();
    };
    EXPECT_EQ(core(0, {"-d", "mlx5_0"}), 0u);
    EXPECT_EQ(core(7, {"-d", "mlx5_0"}), 7u);
    EXPECT_EQ(core(9, {"-d", "mlx5_0"}), 1u);
    EXPECT_EQ(core(9, {"-d", "mlx5_0"}, {5}), 5u);  // bound by MPI
    EXPECT_EQ(core(3, {"-d", "mlx5_0", "--core", "6,2"}), 2u);
    // Each rank has a worker, too.
    const MeshOptions own = resolve(parsed({"-d", "mlx5_0", "--path", "runtime"}), place_of(4, 1));
    EXPECT_EQ(own.core(), 2u);
    EXPECT_EQ(own.latency.worker_core, 3u);
}

TEST(MeshOptions, MoreRanksThanCpusYield) {
    EXPECT_EQ(resolve(parsed({"-d", "mlx5_0"}), place_of(8)).latency.wait, Waiting::spin);
    EXPECT_EQ(resolve(parsed({"-d", "mlx5_0"}), place_of(9)).latency.wait, Waiting::yield);
    EXPECT_EQ(resolve(parsed({"-d", "mlx5_0", "--wait", "spin"}), place_of(9)).latency.wait, Waiting::spin);
}

TEST(MeshOptions, OnlyLeavesOutTheOthers) {
    const MeshOptions options = resolve(parsed({"-d", "mlx5_0", "--only", "incast,latency"}), place_of(4));
    EXPECT_TRUE(options.with_latency && options.with_incast);
    EXPECT_FALSE(options.with_bandwidth || options.with_all_to_all);
}

TEST(MeshOptions, RefuseWhatHasNoMesh) {
    EXPECT_EQ(refusal({"-d", "mlx5_0"}, place_of(1)).find("a mesh has two ranks at least"), 0u);
    EXPECT_EQ(refusal({}).find("say what to measure"), 0u);
    EXPECT_EQ(refusal({"-d", "soft0"}).find("--device: a software device ends with its process"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--path", "attached"}).find("--path attached"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--path", "direct,event"}).find("--path direct,event: a mesh has one"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--op", "fetch-add"}).find("--op fetch-add"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--op", "send,read"}).find("--op send,read: a mesh has one"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--only", "pairs"}).find("--only pairs"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--latency-size", "much"}).find("--latency-size much"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--outlier", "much"}).find("--outlier much"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--incast-to", "4"}).find("--incast-to 4: there are ranks 0 to 3"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--wait", "pause"}).find("--wait pause"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "-n", "1"}).find("--iters 1"), 0u);
    EXPECT_EQ(refusal({"-d", "mlx5_0", "--json", "a", "--csv", "a"}).find("a: two outputs"), 0u);
}

TEST(MeshCommandLine, HelpAndMistakesHaveATextAndACode) {
    const char* const help[] = {"pollperf-mesh", "--help"};
    const MeshLine asked = parse_mesh_command_line(2, help);
    EXPECT_FALSE(asked.arguments);
    EXPECT_EQ(asked.exit_code, 0);
    EXPECT_NE(asked.text.find("--attach"), std::string::npos);
    EXPECT_LE(std::count(asked.text.begin(), asked.text.end(), '\n'), 24);
    const char* const wrong[] = {"pollperf-mesh", "--no-such-option"};
    EXPECT_EQ(parse_mesh_command_line(2, wrong).exit_code, 2);
}

}  // namespace
}  // namespace pollcore::perf
