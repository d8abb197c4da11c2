// The counters that the kernel and the NIC keep of a port, in a table of a statistics segment. They say what no work
// completion says, such as packets that were dropped or sent again.
//
// A thread of its own reads them once a second, because a NIC's firmware may take milliseconds to answer, or may never
// answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "statistics/segment_writer.hpp"

namespace pollcore::statistics {

class PortCounters {
public:
    /// A device's port, and the directory with its folders `counters` and `hw_counters`
    /// (Documentation/ABI/stable/sysfs-class-infiniband of Linux).
    struct Port {
        std::uint32_t device = 0;  ///< the id of the device's row
        std::filesystem::path directory;
    };

    [[nodiscard]] static TableSpec table();

    /// `index` is the table's place in the segment, which must outlive this object. Only this object may write to the
    /// table. The new thread first calls `begin`. Throws Error(ENOSPC) if there is no memory for the table.
    PortCounters(SegmentWriter& segment, std::size_t index, const std::vector<Port>& ports,
                 std::function<void()> begin);
    /// Ends the thread. If a counter does not answer within a second, the thread ends later by itself.
    ~PortCounters();
    PortCounters(const PortCounters&) = delete;
    PortCounters& operator=(const PortCounters&) = delete;

private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

}  // namespace pollcore::statistics
