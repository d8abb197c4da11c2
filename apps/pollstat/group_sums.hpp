// Sums of counters over things that come and go, such as the sessions of a worker.
//
// A plain sum would fall when a thing ends, and Prometheus would take that for a restart. So these sums only grow: they
// are what the counters of all members have grown by since this process first saw the runtime.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "exposition.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore::stat {

class GroupSums {
public:
    /// The words of a row, by field. Fields that are neither counters nor histograms have none.
    using Words = std::vector<std::vector<std::uint64_t>>;

    /// Adds what the rows have grown by since the call before. `group_of` says to which group a row belongs.
    void take(const statistics::ReadTable& table, const std::function<Labels(const statistics::ReadRow&)>& group_of);
    [[nodiscard]] const std::map<Labels, Words>& sums() const noexcept { return sums_; }

private:
    struct Member {
        Words last;
        std::uint64_t seen = 0;  // the call that saw it last
    };

    std::map<Labels, Words> sums_;
    std::unordered_map<std::uint64_t, Member> members_;  // by id
    std::uint64_t calls_ = 0;
};

}  // namespace pollcore::stat
