#include "pollperf/mesh/schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

namespace pollcore::perf {
namespace {

// The circle method for tournaments: in each round each place meets another one, and in all rounds together each two
// places meet once. One place stays, and the others move on by one in each round. An odd number gets a place more, and
// whoever would meet that place rests.
std::vector<std::vector<std::pair<std::size_t, std::size_t>>> circle(std::size_t places) {
    const std::size_t even = places + places % 2;
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> rounds;
    for (std::size_t round = 0; round + 1 < even; ++round) {
        auto& meetings = rounds.emplace_back();
        const auto at = [&](std::size_t seat) { return seat == 0 ? 0 : 1 + (seat - 1 + round) % (even - 1); };
        for (std::size_t seat = 0; seat < even / 2; ++seat) {
            const auto [low, high] = std::minmax({at(seat), at(even - 1 - seat)});
            if (high < places) {
                meetings.emplace_back(low, high);
            }
        }
    }
    return rounds;
}

// Unordered pairs. The ranks of two hosts that meet take turns, and at last the ranks within each host do.
std::vector<Step> unordered(const std::vector<std::vector<int>>& groups) {
    std::vector<Step> steps;
    const auto add = [&](std::size_t step, Pair pair) {
        steps.resize(std::max(steps.size(), step + 1));
        steps[step].push_back(pair);
    };
    for (const auto& round : circle(groups.size())) {
        const std::size_t first = steps.size();
        for (const auto& [one, other] : round) {
            for (std::size_t i = 0; i < groups[one].size() * groups[other].size(); ++i) {
                add(first + i, {groups[one][i / groups[other].size()], groups[other][i % groups[other].size()]});
            }
        }
    }
    const std::size_t first = steps.size();
    for (const auto& group : groups) {
        std::size_t step = first;
        for (std::size_t i = 0; i < group.size(); ++i) {
            for (std::size_t k = i + 1; k < group.size(); ++k) {
                add(step++, {group[i], group[k]});
            }
        }
    }
    return steps;
}

}  // namespace

bool on_one_host(const std::vector<std::string>& hosts) {
    return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
}

std::vector<Step> pair_schedule(const std::vector<std::string>& hosts, bool serial) {
    std::vector<std::vector<int>> groups;
    std::map<std::string, std::size_t> known;
    const bool one_host = on_one_host(hosts);
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
        const std::size_t group = one_host ? rank : known.try_emplace(hosts[rank], known.size()).first->second;
        groups.resize(std::max(groups.size(), group + 1));
        groups[group].push_back(static_cast<int>(rank));
    }
    std::vector<Step> steps;
    for (const Step& step : unordered(groups)) {
        for (const bool back : {false, true}) {
            Step directed;
            for (const Pair& pair : step) {
                directed.push_back(back ? Pair{pair.to, pair.from} : pair);
            }
            if (!serial) {
                steps.push_back(std::move(directed));
                continue;
            }
            for (const Pair& pair : directed) {
                steps.push_back({pair});
            }
        }
    }
    return steps;
}

}  // namespace pollcore::perf
