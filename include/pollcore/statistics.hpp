// The statistics segment: a file in memory in which a runtime tells what it does.
//
// The segment describes itself, so a reader of another version understands it. It begins with a Header. Behind it are
// the Tables: for each kind of thing a table with a row for each thing. Behind them are the Fields: what a row of a
// table has, and where. Behind them are the rows.
//
//   Header | Table x tables | Field x fields | rows of the first table | rows of the second table | ...
//
// A reader steps from Table to Table by Header::table_bytes, and from Field to Field by Header::field_bytes, because
// later versions may have more members at the end. It passes over kinds and units that it does not know.
//
// Only the runtime writes the segment. A reader copies it by pread(2), since a file that is truncated would kill a
// reader that maps it, and checks all that it uses. read_statistics() does so.
//
// Thread safety: the types are plain data; the functions may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/export.h"

namespace pollcore::statistics {

inline constexpr std::array<char, 8> kMagic{'p', 'o', 'l', 'l', 's', 't', 'a', 't'};
/// Changes only if a reader of the version before would misunderstand the segment.
inline constexpr std::uint32_t kVersion = 1;

enum class Kind : std::uint8_t {
    id = 1,         ///< names the row's thing, or another thing; a number is never used again; 0 is none
    counter = 2,    ///< only grows, as long as the row's id is the same
    gauge = 3,      ///< a value of now
    text = 4,       ///< `count` bytes, padded with zeros; a program may have chosen it
    histogram = 5,  ///< `count` counters: how many durations lie from 2^(i-1) to 2^i
    latency = 6,    ///< `count` counters, as LatencyHistogram::counts has them (latency.hpp)
};

enum class Unit : std::uint8_t {
    none = 0,
    cycles = 1,
    nanoseconds = 2,
    bytes = 3,
    boolean = 4,
    date = 5,  ///< nanoseconds since 1970
};

/// The begin of a segment.
struct Header {
    std::array<char, 8> magic{};
    std::uint32_t version = 0;
    std::uint32_t header_bytes = 0;  ///< size of this struct
    std::uint64_t bytes = 0;         ///< size of the segment
    std::uint32_t tables = 0;
    std::uint32_t table_bytes = 0;  ///< size of a Table
    std::uint32_t fields = 0;
    std::uint32_t field_bytes = 0;        ///< size of a Field
    std::uint64_t cycles_per_second = 0;  ///< for fields in cycles
    std::uint32_t pid = 0;
    std::uint32_t uid = 0;
    std::uint64_t pid_started = 0;  ///< field 22 of /proc/PID/stat; tells another process with the same pid
    std::uint64_t began = 0;        ///< when the runtime started, in ns since 1970
    std::uint64_t updated = 0;      ///< when a row was written last, in ns of CLOCK_MONOTONIC
    std::uint64_t updates = 0;      ///< how often rows were written
    std::array<char, 64> name{};    ///< of the runtime
};

/// Describes the rows of all things of one kind.
struct Table {
    std::array<char, 32> name{};
    std::uint64_t offset = 0;     ///< of the first row, from the begin of the segment
    std::uint32_t row_bytes = 0;  ///< distance from row to row
    std::uint32_t rows = 0;       ///< how many there is room for
    std::uint32_t used = 0;       ///< rows from this one on were never used
    std::uint32_t first_field = 0;
    std::uint32_t fields = 0;
    std::uint32_t reserved = 0;
};

/// Describes a value of each row of a table.
struct Field {
    std::array<char, 48> name{};
    Kind kind{};
    Unit unit{};
    std::uint16_t count = 1;   ///< text: bytes; else: words of 64 bits, one behind the other
    std::uint32_t offset = 0;  ///< from the begin of the row
};

/// Each row begins with this word. It grows with every write, and is odd meanwhile. Then comes the row's first field,
/// the id of its thing: 0 if the row has none.
using Sequence = std::uint64_t;

// ---- Reading ----

/// A row of a table. Values of fields that are not text are at the field's place in `words`; texts are in `texts`.
struct ReadRow {
    std::vector<std::vector<std::uint64_t>> words;  ///< by field; empty for a text
    std::vector<std::string> texts;                 ///< by field; empty for other kinds
};

/// The description of a value.
struct ReadField {
    std::string name;
    Kind kind{};
    Unit unit{};
};

/// A table with the rows that had a thing and were whole when they were copied.
struct ReadTable {
    std::string name;
    std::vector<ReadField> fields;
    std::vector<ReadRow> rows;

    /// The field's place in `fields`, or nothing.
    [[nodiscard]] POLLCORE_API std::optional<std::size_t> field(std::string_view name) const noexcept;
};

/// A copy of a segment.
struct Snapshot {
    Header header;
    std::vector<ReadTable> tables;
    bool alive = false;  ///< the process that wrote the segment is still there

    /// Returns null if there is no such table.
    [[nodiscard]] POLLCORE_API const ReadTable* table(std::string_view name) const noexcept;
};

/// Copies a segment, and checks it: the file may be of anybody. Throws Error: EACCES or ENOENT as open(2), EPROTO if it
/// is no segment, EPROTONOSUPPORT if it is of another version.
[[nodiscard]] POLLCORE_API Snapshot read_statistics(const std::filesystem::path& file);
/// Reads an open file. The descriptor stays open. Throws Error as the other read_statistics().
[[nodiscard]] POLLCORE_API Snapshot read_statistics(int fd);

/// The files of the segments that this host has, also of runtimes that have died, sorted by name. Some may not be
/// readable for this user.
[[nodiscard]] POLLCORE_API std::vector<std::filesystem::path> find_statistics();

}  // namespace pollcore::statistics
