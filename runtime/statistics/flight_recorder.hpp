// Keeps the last lines of the log in a statistics segment, so that they can be read after the process has died.
//
// Thread safety: any thread logs; the keeper is called by one thread at a time.
#pragma once

#include <cstdint>

#include "base/log.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore::statistics {

class FlightRecorder final : public log_detail::LineKeeper {
public:
    /// Its table. The newest line has the largest id.
    [[nodiscard]] static TableSpec table();

    /// `index` is the table's place in the segment. From now on each line is kept. Throws Error(ENOSPC) if there is no
    /// memory for the table.
    FlightRecorder(SegmentWriter& segment, std::size_t index);
    ~FlightRecorder();
    FlightRecorder(const FlightRecorder&) = delete;
    FlightRecorder& operator=(const FlightRecorder&) = delete;

    void keep(const log_detail::Line& line) noexcept override;

private:
    static constexpr std::uint32_t kLines = 4096;
    static constexpr std::uint16_t kTextBytes = 200;

    SegmentWriter& segment_;
    const std::size_t index_;
    std::uint64_t kept_ = 0;
};

}  // namespace pollcore::statistics
