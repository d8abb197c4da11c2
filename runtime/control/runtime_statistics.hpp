// Writes what a runtime and its workers count into the statistics segment.
//
// The control thread copies the counters from where their writers have them, so that the segment costs a worker
// nothing.
//
// Thread safety: the control thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/line_budget.hpp"
#include "control/figure_book.hpp"
#include "control/followed_requests.hpp"
#include "control/platform.hpp"
#include "control/slots.hpp"
#include "control/stall_watch.hpp"
#include "pollcore/counters.hpp"
#include "statistics/flight_recorder.hpp"
#include "statistics/port_counters.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore {

class ClientHost;
struct ProcessFigures;

class RuntimeStatistics {
public:
    /// What the runtime has. All must outlive this object.
    struct Sources {
        const Config& config;
        Platform& platform;
        const ControlCounters& counters;
        const std::vector<std::unique_ptr<WorkerSlot>>& workers;
        const std::vector<std::unique_ptr<DeviceSlot>>& devices;
        const std::map<std::uint32_t, SessionSlot>& sessions;
        const std::vector<std::unique_ptr<QpSlot>>& qps;
        ClientHost* const& host;  ///< null while the runtime serves no other processes
    };

    /// Makes the segment. Returns null if the configuration wants none, or if there is no memory for it: the log says
    /// so, and the runtime works without.
    [[nodiscard]] static std::unique_ptr<RuntimeStatistics> make(const Sources& sources) noexcept;
    /// Throws Error.
    explicit RuntimeStatistics(const Sources& sources);
    ~RuntimeStatistics();

    /// Writes all rows, except that it writes at most some thousand queue pairs in a call.
    void write(bool stopping) noexcept;
    /// Enters what the queue pair did in the sums of its device and its process. To be called before it ends.
    void enter(QpSlot& qp) noexcept;
    /// The file of the segment.
    [[nodiscard]] const std::filesystem::path& file() const noexcept { return segment_.file(); }
    /// Writes the rows of one attached process, which are its sessions, its queue pairs and itself, into a segment that
    /// only this process gets. Returns a descriptor of it. A process has one such segment for its whole life, so its
    /// descriptors take no more of the daemon's memory. Throws Error.
    [[nodiscard]] UniqueFd copy_for(std::uint32_t client);
    /// A descriptor of the whole segment, which this object closes in the end.
    [[nodiscard]] int fd() const noexcept { return segment_.fd(); }

private:
    using Segment = statistics::SegmentWriter;

    void write_runtime(bool stopping) noexcept;
    void write_worker(std::uint32_t index) noexcept;
    void write_device(const DeviceSlot& device) noexcept;
    static void write_session(Segment& to, std::uint32_t row, const SessionSlot& session) noexcept;
    void write_queue_pair(Segment& to, std::uint32_t row, const QpSlot& qp) const noexcept;
    void write_process(Segment& to, std::uint32_t row, const ProcessFigures& process) const;
    void write_queue_pairs() noexcept;
    void write_processes() noexcept;
    void take_all_followed() noexcept;
    void take_stalls() noexcept;
    void write_stall(const StallWatch::Found& found);
    /// Clears the rows from `used` on, and notes that those before have a thing.
    static void clear_rest(Segment& in, std::size_t table, std::uint32_t used, std::uint32_t& rows) noexcept;
    /// The segment of a process. It has at least this many rows.
    struct OfProcess;
    [[nodiscard]] OfProcess& segment_of(std::uint32_t client, std::size_t sessions, std::size_t queue_pairs);
    void forget_the_gone(const std::set<std::uint32_t>& processes) noexcept;

    const Sources from_;
    statistics::SegmentWriter segment_;
    statistics::FlightRecorder events_;
    std::optional<statistics::PortCounters> port_counters_;
    FigureBook figures_;
    StallWatch stall_watch_;
    LineBudget stall_lines_{1};
    std::uint64_t stalls_ = 0;
    std::map<std::uint32_t, FollowedRequests> followed_;  // by session
    std::uint64_t followed_count_ = 0;
    std::map<std::uint32_t, std::unique_ptr<OfProcess>> of_processes_;
    std::uint32_t session_rows_ = 0;  // that have a session
    std::uint32_t process_rows_ = 0;
    std::size_t next_qp_ = 0;
};

}  // namespace pollcore
