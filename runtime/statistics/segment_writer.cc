#include "statistics/segment_writer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "pollcore/error.hpp"
#include "statistics/process_start.hpp"

namespace pollcore::statistics {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t rounded(std::size_t bytes, std::size_t to) noexcept {
    return (bytes + to - 1) / to * to;
}

std::size_t bytes_of(const FieldSpec& field) noexcept {
    return field.kind == Kind::text ? field.count : field.count * sizeof(std::uint64_t);
}

template <std::size_t N>
void put(std::array<char, N>& to, std::string_view text) noexcept {
    std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}

}  // namespace

SegmentWriter::SegmentWriter(const SegmentOptions& options, const std::vector<TableSpec>& tables)
    : file_(options.file) {
    std::size_t fields = 0;
    for (const TableSpec& table : tables) {
        fields += table.fields.size();
    }
    bytes_ = rounded(sizeof(Header) + tables.size() * sizeof(Table) + fields * sizeof(Field), kPage);
    const std::size_t described_bytes = bytes_;
    std::vector<Table> places;
    std::vector<Field> described;
    for (const TableSpec& spec : tables) {
        Table table;
        put(table.name, spec.name);
        table.offset = bytes_;
        table.rows = spec.rows;
        table.first_field = static_cast<std::uint32_t>(described.size());
        table.fields = static_cast<std::uint32_t>(spec.fields.size());
        std::size_t row = sizeof(Sequence);
        for (const FieldSpec& each : spec.fields) {
            Field field{.kind = each.kind, .unit = each.unit, .count = each.count};
            put(field.name, each.name);
            field.offset = static_cast<std::uint32_t>(row);
            row += bytes_of(each);
            described.push_back(field);
        }
        table.row_bytes = static_cast<std::uint32_t>(rounded(row, 64));
        nowhere_.resize(std::max(nowhere_.size(), table.row_bytes / sizeof(std::uint64_t)));
        bytes_ += rounded(std::size_t{table.row_bytes} * table.rows, kPage);
        places.push_back(table);
    }
    allocated_.resize(places.size());

    fd_ = UniqueFd(file_.empty() ? ::memfd_create("pollcore statistics", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                                 : ::open(file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd_.valid()) {
        throw Error(errno, fmt::format("cannot make the statistics segment {}", file_.string()));
    }
    const auto fail = [&](const char* what) {
        const int error = errno;
        remove_file();
        throw Error(error, fmt::format("cannot {} the statistics segment {}", what, file_.string()));
    };
    if (options.group != static_cast<gid_t>(-1) && ::fchown(fd_.get(), static_cast<uid_t>(-1), options.group) != 0) {
        fail("give the group to");
    }
    if (::fchmod(fd_.get(), 0640) != 0 || ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0 ||
        ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(described_bytes)) != 0) {
        fail("make");
    }
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (memory == MAP_FAILED) {
        fail("map");
    }
    memory_ = static_cast<std::byte*>(memory);
    // This mapping was made before, so it can still write (fcntl(2)).
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    if (file_.empty() && ::fcntl(fd_.get(), F_ADD_SEALS, kSeals) != 0) {
        const int error = errno;
        ::munmap(memory_, bytes_);
        throw Error(error, "cannot seal the statistics of a process");
    }

    std::memcpy(memory_ + sizeof(Header), places.data(), places.size() * sizeof(Table));
    std::memcpy(memory_ + sizeof(Header) + places.size() * sizeof(Table), described.data(),
                described.size() * sizeof(Field));
    Header made{.version = kVersion,
                .header_bytes = sizeof(Header),
                .bytes = bytes_,
                .tables = static_cast<std::uint32_t>(places.size()),
                .table_bytes = sizeof(Table),
                .fields = static_cast<std::uint32_t>(described.size()),
                .field_bytes = sizeof(Field),
                .cycles_per_second = options.cycles_per_second,
                .pid = static_cast<std::uint32_t>(::getpid()),
                .uid = static_cast<std::uint32_t>(::geteuid()),
                .pid_started = process_start(::getpid()).value_or(0),
                .began = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                        std::chrono::system_clock::now().time_since_epoch())
                                                        .count())};
    put(made.name, options.name);
    std::memcpy(memory_, &made, sizeof(made));
    std::atomic_thread_fence(std::memory_order_release);
    header().magic = kMagic;  // last: a reader that finds it finds all the rest
}

SegmentWriter::~SegmentWriter() {
    if (memory_ != nullptr) {
        ::munmap(memory_, bytes_);
    }
    remove_file();
}

UniqueFd SegmentWriter::descriptor() const {
    UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
        throw Error(errno, "cannot hand out the statistics");
    }
    return copy;
}

void SegmentWriter::remove_file() const noexcept {
    if (!file_.empty() && ::unlink(file_.c_str()) != 0 && errno != ENOENT) {
        log_error("cannot remove the statistics segment {}: {}", file_.string(), std::strerror(errno));
    }
}

SegmentWriter::RowWriter& SegmentWriter::RowWriter::text(std::string_view text, std::size_t bytes) noexcept {
    for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
        std::uint64_t part = 0;
        if (i < text.size()) {
            std::memcpy(&part, text.data() + i, std::min(sizeof(part), text.size() - i));
        }
        *this << part;
    }
    return *this;
}

bool SegmentWriter::has_memory_for(std::size_t index, std::uint32_t at) noexcept {
    if (at < allocated_[index]) {
        return true;
    }
    const Table& its = table(index);
    const auto begin = static_cast<off_t>(its.offset);
    const std::uint32_t rows = std::min(its.rows, at + std::max(1u, static_cast<std::uint32_t>(kPage / its.row_bytes)));
    if (::fallocate(fd_.get(), 0, begin, static_cast<off_t>(std::size_t{rows} * its.row_bytes)) != 0) {
        if (!std::exchange(told_, true)) {
            log_error("no memory for more rows in the statistics segment {}: {}", file_.string(), std::strerror(errno));
        }
        return false;
    }
    allocated_[index] = rows;
    return true;
}

bool SegmentWriter::allocate(std::size_t index) noexcept {
    return has_memory_for(index, table(index).rows - 1);
}

SegmentWriter::RowWriter SegmentWriter::write(std::size_t index, std::uint32_t at) noexcept {
    if (!has_memory_for(index, at)) {
        return {reinterpret_cast<std::byte*>(nowhere_.data()), 0};
    }
    Table& its = table(index);
    if (at >= its.used) {
        std::atomic_ref(its.used).store(at + 1, std::memory_order_relaxed);
    }
    std::byte* const to = row(its, at);
    return {to, *reinterpret_cast<const std::uint64_t*>(to)};
}

void SegmentWriter::clear(std::size_t index, std::uint32_t at) noexcept {
    if (at < table(index).used) {
        write(index, at) << 0;
    }
}

void SegmentWriter::updated(std::uint64_t now) noexcept {
    std::atomic_ref(header().updated).store(now, std::memory_order_relaxed);
    std::atomic_ref(header().updates).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace pollcore::statistics
