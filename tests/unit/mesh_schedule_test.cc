// Which ranks of pollperf-mesh measure at the same time.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/mesh/schedule.hpp"

namespace pollcore::perf {
namespace {

using Hosts = std::vector<std::string>;

/// `ranks` ranks on each of `hosts` hosts: of one host after the other, or, `by_node`, dealt out to the hosts.
Hosts hosts_of(int hosts, int ranks, bool by_node = false) {
    Hosts all;
    for (int i = 0; i < hosts * ranks; ++i) {
        all.push_back("host" + std::to_string(by_node ? i % hosts : i / ranks));
    }
    return all;
}

/// Checks that the schedule has each ordered pair once, and no host twice in a step.
void expect_whole(const Hosts& hosts, const std::vector<Step>& steps) {
    std::map<std::pair<int, int>, int> seen;
    for (const Step& step : steps) {
        EXPECT_FALSE(step.empty());
        std::multiset<std::string> busy;
        for (const Pair& pair : step) {
            ++seen[{pair.from, pair.to}];
            std::set<std::string> ends{hosts[static_cast<std::size_t>(pair.from)],
                                       hosts[static_cast<std::size_t>(pair.to)]};
            if (on_one_host(hosts)) {
                ends = {std::to_string(pair.from), std::to_string(pair.to)};
            }
            busy.insert(ends.begin(), ends.end());
        }
        for (const std::string& one : busy) {
            EXPECT_EQ(busy.count(one), 1u) << one;
        }
    }
    const auto ranks = static_cast<int>(hosts.size());
    EXPECT_EQ(seen.size(), hosts.size() * (hosts.size() - 1));
    for (const auto& [pair, times] : seen) {
        EXPECT_EQ(times, 1);
        EXPECT_NE(pair.first, pair.second);
        EXPECT_TRUE(pair.first >= 0 && pair.first < ranks && pair.second >= 0 && pair.second < ranks);
    }
}

TEST(MeshSchedule, OneRankHasNobodyToMeasureWith) {
    EXPECT_TRUE(pair_schedule({"a"}, false).empty());
    EXPECT_TRUE(pair_schedule({}, false).empty());
}

TEST(MeshSchedule, EachOrderedPairOnceAndNoHostTwiceAtATime) {
    for (int hosts = 1; hosts <= 17; ++hosts) {
        for (const bool serial : {false, true}) {
            const Hosts all = hosts_of(hosts, 1);
            expect_whole(all, pair_schedule(all, serial));
        }
    }
}

TEST(MeshSchedule, SoManyStepsAsARoundRobinNeeds) {
    // With an even number each host is busy in each step; with an odd number one rests.
    for (const int hosts : {2, 4, 8, 16}) {
        EXPECT_EQ(pair_schedule(hosts_of(hosts, 1), false).size(), 2u * static_cast<unsigned>(hosts - 1));
    }
    for (const int hosts : {3, 5, 9}) {
        EXPECT_EQ(pair_schedule(hosts_of(hosts, 1), false).size(), 2u * static_cast<unsigned>(hosts));
    }
}

TEST(MeshSchedule, RanksOfOneHostTakeThePlaceOfHosts) {
    for (int ranks = 2; ranks <= 9; ++ranks) {
        const Hosts all = hosts_of(1, ranks);
        EXPECT_TRUE(on_one_host(all));
        const auto steps = pair_schedule(all, false);
        expect_whole(all, steps);
        EXPECT_EQ(steps.size(), pair_schedule(hosts_of(ranks, 1), false).size());
    }
}

TEST(MeshSchedule, SeveralRanksOfAHostAreNeverBusyAtTheSameTime) {
    for (int hosts = 2; hosts <= 5; ++hosts) {
        for (int ranks = 2; ranks <= 4; ++ranks) {
            for (const bool by_node : {false, true}) {
                const Hosts all = hosts_of(hosts, ranks, by_node);
                EXPECT_FALSE(on_one_host(all));
                expect_whole(all, pair_schedule(all, false));
            }
        }
    }
}

TEST(MeshSchedule, HostsMayHaveDifferentNumbersOfRanks) {
    for (const Hosts& all :
         {Hosts{"a", "b", "b", "b"}, Hosts{"a", "b", "a", "c", "c", "c", "b", "d", "d"}, Hosts{"a", "a", "a", "b"}}) {
        expect_whole(all, pair_schedule(all, false));
        expect_whole(all, pair_schedule(all, true));
    }
}

TEST(MeshSchedule, SerialHasOnePairAtATime) {
    for (const Hosts& all : {hosts_of(4, 1), hosts_of(1, 5), hosts_of(3, 2)}) {
        for (const Step& step : pair_schedule(all, true)) {
            EXPECT_EQ(step.size(), 1u);
        }
    }
}

}  // namespace
}  // namespace pollcore::perf
