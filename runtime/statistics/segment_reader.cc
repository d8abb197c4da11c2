// Reads statistics segments. The file may be of anybody, and may change while it is read.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"
#include "pollcore/statistics.hpp"
#include "statistics/process_start.hpp"

namespace pollcore::statistics {
namespace {

// A runtime with all that it can have stays below. A file that claims more must not make its reader allocate it.
constexpr std::size_t kSegmentMax = std::size_t{64} << 20;
constexpr std::uint32_t kTablesMax = 64;
constexpr std::uint32_t kFieldsMax = 4096;
constexpr std::uint32_t kRowMax = 1 << 16;
// A value takes about 100 bytes here. 65536 queue pairs have fewer values.
constexpr std::uint64_t kValuesMax = 4'000'000;
constexpr int kTries = 8;

class File {
public:
    /// `name` is for messages.
    File(std::string name, int fd) : name_(std::move(name)), fd_(fd) {
        struct stat status {};
        if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
            refuse("is no file");
        }
    }
    void read(void* to, std::size_t bytes, std::uint64_t from) const {
        for (std::size_t done = 0; done < bytes;) {
            const ssize_t n =
                ::pread(fd_, static_cast<std::byte*>(to) + done, bytes - done, static_cast<off_t>(from + done));
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n <= 0) {
                refuse("is shorter than it says");
            }
            done += static_cast<std::size_t>(n);
        }
    }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[noreturn]] void refuse(const char* why) const {
        throw Error(EPROTO, fmt::format("{} {}, so it is no statistics segment", name_, why));
    }

private:
    const std::string name_;
    const int fd_;
};

/// Copies as much of a struct as both the writer's version and this one have.
template <class T>
T read_struct(const File& file, std::uint64_t from, std::uint32_t written) {
    T value{};
    file.read(&value, std::min<std::size_t>(sizeof(T), written), from);
    return value;
}

template <std::size_t N>
std::string text_of(const std::array<char, N>& text) {
    return {text.data(), ::strnlen(text.data(), N)};
}

std::size_t bytes_of(const Field& field) noexcept {
    return field.kind == Kind::text ? field.count : std::size_t{field.count} * sizeof(std::uint64_t);
}

/// Rows that did not change between two copies.
std::vector<ReadRow> read_rows(const File& file, const Table& table, const std::vector<Field>& fields) {
    const std::uint32_t used = std::min(table.used, table.rows);
    const std::size_t bytes = std::size_t{used} * table.row_bytes;
    std::vector<std::byte> first(bytes);
    std::vector<std::byte> second(bytes);
    std::vector<ReadRow> rows;
    std::vector<bool> done(used);
    std::size_t left = used;
    for (int tries = 0; tries < kTries && left > 0; ++tries) {
        file.read(first.data(), bytes, table.offset);
        file.read(second.data(), bytes, table.offset);
        for (std::uint32_t i = 0; i < used; ++i) {
            const std::byte* const row = first.data() + std::size_t{i} * table.row_bytes;
            Sequence before = 0;
            Sequence after = 0;
            std::memcpy(&before, row, sizeof(before));
            std::memcpy(&after, second.data() + std::size_t{i} * table.row_bytes, sizeof(after));
            if (done[i] || before % 2 != 0 || before != after) {
                continue;
            }
            done[i] = true;
            --left;
            std::uint64_t id = 0;
            std::memcpy(&id, row + sizeof(Sequence), sizeof(id));
            if (id == 0) {
                continue;
            }
            ReadRow read;
            for (const Field& field : fields) {
                read.words.emplace_back();
                read.texts.emplace_back();
                const std::byte* const at = row + field.offset;
                if (field.kind == Kind::text) {
                    const char* const text = reinterpret_cast<const char*>(at);
                    read.texts.back().assign(text, ::strnlen(text, field.count));
                } else {
                    read.words.back().resize(field.count);
                    std::memcpy(read.words.back().data(), at, bytes_of(field));
                }
            }
            rows.push_back(std::move(read));
        }
    }
    return rows;
}

}  // namespace

std::optional<std::size_t> ReadTable::field(std::string_view wanted) const noexcept {
    for (std::size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].name == wanted) {
            return i;
        }
    }
    return std::nullopt;
}

const ReadTable* Snapshot::table(std::string_view wanted) const noexcept {
    const auto found =
        std::find_if(tables.begin(), tables.end(), [&](const ReadTable& table) { return table.name == wanted; });
    return found != tables.end() ? &*found : nullptr;
}

namespace {

Snapshot read(const File& file) {
    Snapshot snapshot;
    // The first words are the same in all versions.
    constexpr std::uint32_t kAlways = offsetof(Header, bytes);
    const auto begin = read_struct<Header>(file, 0, kAlways);
    if (begin.magic != kMagic) {
        file.refuse("does not begin as one");
    }
    if (begin.version != kVersion) {
        throw Error(EPROTONOSUPPORT, fmt::format("{} has version {} of the statistics, and this program reads {}",
                                                 file.name(), begin.version, kVersion));
    }
    if (begin.header_bytes < kAlways || begin.header_bytes > kRowMax) {
        file.refuse("has a wrong header");
    }
    Header& header = snapshot.header;
    header = read_struct<Header>(file, 0, begin.header_bytes);
    if (header.bytes > kSegmentMax || header.tables > kTablesMax || header.fields > kFieldsMax ||
        header.table_bytes < sizeof(Table) || header.table_bytes > kRowMax || header.field_bytes < sizeof(Field) ||
        header.field_bytes > kRowMax) {
        file.refuse("has a wrong header");
    }
    std::uint64_t values = 0;
    const std::uint64_t fields_at = begin.header_bytes + std::uint64_t{header.tables} * header.table_bytes;
    // Tables that overlap, or fields that do, would take many times the memory of the segment.
    std::uint64_t bytes_of_tables = 0;
    for (std::uint32_t i = 0; i < header.tables; ++i) {
        const auto table =
            read_struct<Table>(file, begin.header_bytes + std::uint64_t{i} * header.table_bytes, header.table_bytes);
        const std::uint64_t end = std::uint64_t{table.row_bytes} * table.rows;
        if (table.row_bytes < 2 * sizeof(std::uint64_t) || table.row_bytes > kRowMax || table.offset > header.bytes ||
            end > header.bytes - table.offset || table.fields == 0 || table.fields > header.fields ||
            table.first_field > header.fields - table.fields) {
            file.refuse("has a wrong table");
        }
        bytes_of_tables += end;
        if (bytes_of_tables > header.bytes) {
            file.refuse("has tables that overlap");
        }
        ReadTable read{.name = text_of(table.name), .fields = {}, .rows = {}};
        values += std::uint64_t{std::min(table.used, table.rows)} * table.fields;
        if (values > kValuesMax) {
            file.refuse("has too many values");
        }
        std::vector<Field> fields;
        std::size_t bytes_of_fields = sizeof(Sequence);
        for (std::uint32_t k = 0; k < table.fields; ++k) {
            const auto field = read_struct<Field>(
                file, fields_at + std::uint64_t{table.first_field + k} * header.field_bytes, header.field_bytes);
            if (field.count == 0 || field.offset < sizeof(Sequence) || field.offset > table.row_bytes ||
                bytes_of(field) > table.row_bytes - field.offset) {
                file.refuse("has a wrong field");
            }
            bytes_of_fields += bytes_of(field);
            if (bytes_of_fields > table.row_bytes) {
                file.refuse("has fields that overlap");
            }
            fields.push_back(field);
            read.fields.push_back({.name = text_of(field.name), .kind = field.kind, .unit = field.unit});
        }
        read.rows = read_rows(file, table, fields);
        snapshot.tables.push_back(std::move(read));
    }
    snapshot.alive = process_start(static_cast<pid_t>(header.pid)) == header.pid_started;
    return snapshot;
}

}  // namespace

Snapshot read_statistics(const std::filesystem::path& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) {
        throw Error(errno, fmt::format("cannot open {}", path.string()));
    }
    return read({path.string(), fd.get()});
}

Snapshot read_statistics(int fd) {
    return read({"the file", fd});
}

}  // namespace pollcore::statistics
