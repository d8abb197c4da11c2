#include "statistics/flight_recorder.hpp"

#include <cerrno>
#include <chrono>

#include "pollcore/error.hpp"

namespace pollcore::statistics {

TableSpec FlightRecorder::table() {
    return {"event",
            kLines,
            {{"event", Kind::id},
             {"time", Kind::gauge, Unit::date},
             {"level", Kind::gauge},
             {"text", Kind::text, Unit::none, kTextBytes}}};
}

FlightRecorder::FlightRecorder(SegmentWriter& segment, std::size_t index) : segment_(segment), index_(index) {
    // Other threads write here, and only writes to rows that have memory may come from several threads.
    if (!segment.allocate(index)) {
        throw Error(ENOSPC, "no memory for the last lines of the log in the statistics segment");
    }
    log_detail::add_keeper(*this);
}

FlightRecorder::~FlightRecorder() {
    log_detail::remove_keeper(*this);
}

void FlightRecorder::keep(const log_detail::Line& line) noexcept {
    const LogLine parts = line.parts();
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(parts.time.time_since_epoch()).count();
    auto row = segment_.write(index_, static_cast<std::uint32_t>(kept_ % kLines));
    row << ++kept_ << static_cast<std::uint64_t>(time) << static_cast<std::uint64_t>(parts.level);
    row.text(parts.text, kTextBytes);
}

}  // namespace pollcore::statistics
