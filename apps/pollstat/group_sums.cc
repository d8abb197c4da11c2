#include "group_sums.hpp"

#include <algorithm>

namespace pollcore::stat {
namespace {

// A runtime has far fewer groups. An enemy's segment must not make this process keep ever more.
constexpr std::size_t kGroupsMax = 4096;
// A row that is being written is missing from a snapshot. If it was forgotten at once, it would count as new later.
constexpr std::uint64_t kCallsToForget = 16;

bool is_summed(statistics::Kind kind) noexcept {
    return kind == statistics::Kind::counter || kind == statistics::Kind::histogram ||
           kind == statistics::Kind::latency;
}

}  // namespace

void GroupSums::take(const statistics::ReadTable& table,
                     const std::function<Labels(const statistics::ReadRow&)>& group_of) {
    const bool first = calls_++ == 0;
    for (const statistics::ReadRow& row : table.rows) {
        if (row.words.empty() || row.words[0].empty()) {
            continue;
        }
        const Labels group = group_of(row);
        auto sum = sums_.find(group);
        if (sum == sums_.end()) {
            if (sums_.size() >= kGroupsMax) {
                continue;
            }
            sum = sums_.emplace(group, Words()).first;
        }
        const auto [at, is_new] = members_.try_emplace(row.words[0][0]);
        Member& member = at->second;
        member.last.resize(table.fields.size());
        sum->second.resize(std::max(sum->second.size(), table.fields.size()));
        for (std::size_t i = 0; i < table.fields.size(); ++i) {
            if (!is_summed(table.fields[i].kind)) {
                continue;
            }
            const std::vector<std::uint64_t>& now = row.words[i];
            std::vector<std::uint64_t>& last = member.last[i];
            std::vector<std::uint64_t>& its = sum->second[i];
            last.resize(now.size());
            its.resize(std::max(its.size(), now.size()));
            for (std::size_t k = 0; k < now.size(); ++k) {
                // What was counted before this process looked first belongs to nobody's rate.
                const bool known = !is_new || !first;
                its[k] += known && now[k] > last[k] ? now[k] - last[k] : 0;
                last[k] = now[k];
            }
        }
        member.seen = calls_;
    }
    std::erase_if(members_, [&](const auto& each) { return each.second.seen + kCallsToForget < calls_; });
}

}  // namespace pollcore::stat
