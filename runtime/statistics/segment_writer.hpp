// Makes a statistics segment, and writes its rows (pollcore/statistics.hpp).
//
// Thread safety: one thread. Ownership: the writer owns the file. It removes the file in the end; after a crash the
// file remains, so that its last rows can be read.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore::statistics {

/// A field of a table that is to be made. Its offset follows from those before it.
struct FieldSpec {
    std::string_view name;
    Kind kind = Kind::counter;
    Unit unit = Unit::none;
    std::uint16_t count = 1;
};

struct TableSpec {
    std::string_view name;
    std::uint32_t rows = 0;
    std::vector<FieldSpec> fields;
};

struct SegmentOptions {
    std::filesystem::path file;  ///< must not exist; empty: memory without a file, which only descriptor() gives away
    std::string name;
    gid_t group = static_cast<gid_t>(-1);  ///< may read the file; -1: the process's own group
    std::uint64_t cycles_per_second = 0;
};

/// Where the segments of this host are.
[[nodiscard]] std::filesystem::path segment_directory();
/// A name for the segment of this process, unlike those of its other runtimes. Throws Error.
[[nodiscard]] std::filesystem::path new_segment_file();
/// The segments of the runtimes of this process. No other user can have made these files.
[[nodiscard]] std::vector<std::filesystem::path> own_segment_files();
/// How many segments of dead processes a user has at most after remove_dead_segments().
constexpr std::size_t kDeadKept = 4;
/// Removes segments of this user's processes that have died, except for those of the kDeadKept that died last, which
/// tell why. Call this when a segment is made.
void remove_dead_segments() noexcept;

class SegmentWriter {
public:
    /// Throws Error.
    SegmentWriter(const SegmentOptions& options, const std::vector<TableSpec>& tables);
    ~SegmentWriter();
    SegmentWriter(const SegmentWriter&) = delete;
    SegmentWriter& operator=(const SegmentWriter&) = delete;

    /// Writes the fields of a row, in their order, the id first. All fields must be written, or the id 0 alone.
    class RowWriter {
    public:
        RowWriter(std::byte* row, std::uint64_t sequence) noexcept : row_(row), sequence_(sequence) {
            word(0).store(sequence_ | 1, std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_release);
        }
        ~RowWriter() { word(0).store((sequence_ | 1) + 1, std::memory_order_release); }
        RowWriter(const RowWriter&) = delete;
        RowWriter& operator=(const RowWriter&) = delete;

        RowWriter& operator<<(std::uint64_t value) noexcept {
            word(at_).store(value, std::memory_order_relaxed);
            at_ += sizeof(value);
            return *this;
        }
        /// A text field of `bytes` bytes, a multiple of 8. A longer text is cut.
        RowWriter& text(std::string_view text, std::size_t bytes) noexcept;

    private:
        [[nodiscard]] std::atomic_ref<std::uint64_t> word(std::size_t offset) const noexcept {
            return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(row_ + offset));
        }
        std::byte* row_;
        std::uint64_t sequence_;
        std::size_t at_ = sizeof(Sequence);
    };

    /// Allocates the memory of a whole table. Returns false if there is none.
    [[nodiscard]] bool allocate(std::size_t table) noexcept;
    /// `row` must be less than the table's rows. If there is no memory for the row, what is written is lost, and this
    /// is logged once.
    [[nodiscard]] RowWriter write(std::size_t table, std::uint32_t row) noexcept;
    /// The row has no thing any more.
    void clear(std::size_t table, std::uint32_t row) noexcept;
    /// Call this after rows were written. `now` is of CLOCK_MONOTONIC.
    void updated(std::uint64_t now) noexcept;
    /// Returns a descriptor for another process, which can read the segment, but neither write nor resize it. The
    /// segment must have no file. Throws Error.
    [[nodiscard]] UniqueFd descriptor() const;
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }

private:
    [[nodiscard]] Header& header() const noexcept { return *reinterpret_cast<Header*>(memory_); }
    [[nodiscard]] Table& table(std::size_t index) const noexcept {
        return *reinterpret_cast<Table*>(memory_ + sizeof(Header) + index * sizeof(Table));
    }
    [[nodiscard]] std::byte* row(const Table& table, std::uint32_t index) const noexcept {
        return memory_ + table.offset + std::size_t{index} * table.row_bytes;
    }

    void remove_file() const noexcept;
    /// Allocates the file's memory for all rows up to `index`. A page that is written without would kill this process
    /// if there is no memory for it.
    [[nodiscard]] bool has_memory_for(std::size_t table, std::uint32_t index) noexcept;

    std::filesystem::path file_;
    UniqueFd fd_;
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::vector<std::uint32_t> allocated_;  // rows, by table
    std::vector<std::uint64_t> nowhere_;    // the place of a row that has no memory
    bool told_ = false;                     // the log says that there is no memory
};

}  // namespace pollcore::statistics
