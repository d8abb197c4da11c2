// The statistics segment: what a reader finds is what the writer has written, and a file of an enemy is refused.
#include "pollcore/statistics.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/error.hpp"
#include "statistics/flight_recorder.hpp"
#include "statistics/process_start.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore::statistics {
namespace {

const std::vector<TableSpec> kTables{
    {"things", 1000, {{"thing", Kind::id}, {"name", Kind::text, Unit::none, 16}, {"count", Kind::counter}}},
    {"others", 1, {{"other", Kind::id}, {"durations", Kind::histogram, Unit::cycles, 4}}}};

class StatisticsTest : public ::testing::Test {
protected:
    StatisticsTest() : file_(std::filesystem::temp_directory_path() / ("statistics-" + std::to_string(::getpid()))) {
        std::filesystem::remove(file_);
    }
    ~StatisticsTest() override { std::filesystem::remove(file_); }
    [[nodiscard]] std::unique_ptr<SegmentWriter> writer() const {
        return std::make_unique<SegmentWriter>(SegmentOptions{.file = file_, .name = "test", .cycles_per_second = 1000},
                                               kTables);
    }
    static void write_thing(SegmentWriter& to, std::uint32_t row, std::uint64_t id, std::string_view name,
                            std::uint64_t count) {
        auto out = to.write(0, row);
        out << id;
        out.text(name, 16) << count;
    }
    static int error_of(const std::function<void()>& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.code().value();
        }
        return 0;
    }
    [[nodiscard]] std::string bytes() const {
        std::ifstream in(file_, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    void replace(const std::string& bytes) const {
        std::filesystem::remove(file_);
        std::ofstream(file_, std::ios::binary) << bytes;
    }

    std::filesystem::path file_;
};

// What an attached process gets of its own rows.
TEST_F(StatisticsTest, WithoutAFileItIsReadableByADescriptorThatCannotChangeIt) {
    SegmentWriter writer(SegmentOptions{.file = {}, .name = "of a process"}, kTables);
    const UniqueFd fd = writer.descriptor();
    write_thing(writer, 700, 9, "late", 1);  // a page that had no memory when the descriptor was made
    const Snapshot snapshot = read_statistics(fd.get());
    EXPECT_STREQ(snapshot.header.name.data(), "of a process");
    const std::byte byte{1};
    EXPECT_EQ(::pwrite(fd.get(), &byte, 1, 0), -1);
    EXPECT_EQ(errno, EPERM);
    EXPECT_EQ(::ftruncate(fd.get(), 0), -1);
    EXPECT_EQ(::ftruncate(fd.get(), 1 << 30), -1);
    EXPECT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    const UniqueFd again = writer.descriptor();
    struct stat first {
    }, second{};
    ASSERT_EQ(::fstat(fd.get(), &first), 0);
    ASSERT_EQ(::fstat(again.get(), &second), 0);
    EXPECT_EQ(first.st_ino, second.st_ino);
}

TEST_F(StatisticsTest, AReaderFindsWhatWasWritten) {
    const auto segment = writer();
    write_thing(*segment, 0, 7, "seven", 70);
    write_thing(*segment, 2, 9, "longer than sixteen bytes", 90);
    segment->write(1, 0) << 1 << 10 << 20 << 30 << 40;
    segment->updated(123);
    const Snapshot read = read_statistics(file_);
    EXPECT_TRUE(read.alive);
    EXPECT_EQ(read.header.pid, static_cast<std::uint32_t>(::getpid()));
    EXPECT_EQ(std::string(read.header.name.data()), "test");
    EXPECT_EQ(read.header.updated, 123u);
    EXPECT_EQ(read.header.updates, 1u);
    ASSERT_NE(read.table("things"), nullptr);
    EXPECT_EQ(read.table("nothing"), nullptr);
    const ReadTable& things = *read.table("things");
    ASSERT_EQ(things.rows.size(), 2u);
    const std::size_t name = things.field("name").value();
    const std::size_t count = things.field("count").value();
    EXPECT_FALSE(things.field("colour"));
    EXPECT_EQ(things.rows[0].texts[name], "seven");
    EXPECT_EQ(things.rows[0].words[count], std::vector<std::uint64_t>{70});
    EXPECT_EQ(things.rows[1].texts[name], "longer than sixt");
    const ReadTable& others = *read.table("others");
    EXPECT_EQ(others.fields[1].kind, Kind::histogram);
    EXPECT_EQ(others.fields[1].unit, Unit::cycles);
    EXPECT_EQ(others.rows.at(0).words[1], (std::vector<std::uint64_t>{10, 20, 30, 40}));
}

TEST_F(StatisticsTest, ARowWithoutAThingIsNotRead) {
    const auto segment = writer();
    write_thing(*segment, 0, 7, "seven", 70);
    write_thing(*segment, 1, 8, "eight", 80);
    segment->clear(0, 0);
    segment->clear(0, 999);  // was never written
    const Snapshot read = read_statistics(file_);
    ASSERT_EQ(read.tables[0].rows.size(), 1u);
    EXPECT_EQ(read.tables[0].rows[0].texts[1], "eight");
}

TEST_F(StatisticsTest, OnlyTheOwnerAndTheGroupMayRead) {
    const auto segment = writer();
    struct stat status {};
    ASSERT_EQ(::stat(file_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0640u);
    EXPECT_EQ(error_of([&] { (void)writer(); }), EEXIST);
}

TEST_F(StatisticsTest, TheFileGoesWithTheWriterAndStaysAfterACrash) {
    writer().reset();
    EXPECT_FALSE(std::filesystem::exists(file_));
    const pid_t child = ::fork();
    if (child == 0) {
        const auto segment = writer();
        write_thing(*segment, 0, 7, "seven", 70);
        ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const Snapshot read = read_statistics(file_);
    EXPECT_FALSE(read.alive);
    EXPECT_EQ(read.tables[0].rows.size(), 1u);
}

TEST_F(StatisticsTest, ARowIsNeverReadHalfWritten) {
    const auto segment = writer();
    std::atomic<bool> stop{false};
    std::thread writes([&] {
        for (std::uint64_t i = 1; !stop.load(); ++i) {
            segment->write(1, 0) << 1 << i << i << i << i;
            std::this_thread::yield();
        }
    });
    int seen = 0;
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (int i = 0; i < 3000 || (seen == 0 && std::chrono::steady_clock::now() < until); ++i) {
        const Snapshot read = read_statistics(file_);
        for (const ReadRow& row : read.tables[1].rows) {
            const auto& words = row.words[1];
            EXPECT_EQ(words, std::vector<std::uint64_t>(4, words[0]));
            ++seen;
        }
    }
    stop.store(true);
    writes.join();
    EXPECT_GT(seen, 0);
}

TEST_F(StatisticsTest, ALaterVersionWithMoreMembersIsUnderstood) {
    std::string changed;
    {
        const auto segment = writer();
        write_thing(*segment, 0, 7, "seven", 70);
        segment->write(1, 0) << 1 << 10 << 20 << 30 << 40;
        const std::string all = bytes();
        // What a later version would write: each struct has 16 bytes more.
        constexpr std::size_t kMore = 16;
        Header header;
        std::memcpy(&header, all.data(), sizeof(header));
        std::string later(kMore, '\x77');
        std::string structs;
        std::size_t at = sizeof(Header);
        const auto add = [&](std::uint32_t number, std::size_t size, const std::function<void(char*)>& change) {
            for (std::uint32_t i = 0; i < number; ++i, at += size) {
                std::string one = all.substr(at, size);
                change(one.data());
                structs += one + later;
            }
        };
        const std::size_t growth = 4096;
        add(header.tables, sizeof(Table), [&](char* one) {
            Table table;
            std::memcpy(&table, one, sizeof(table));
            table.offset += growth;
            std::memcpy(one, &table, sizeof(table));
        });
        add(header.fields, sizeof(Field), [](char*) {});
        header.header_bytes += kMore;
        header.table_bytes += kMore;
        header.field_bytes += kMore;
        header.bytes += growth;
        changed.assign(reinterpret_cast<const char*>(&header), sizeof(header));
        changed += later + structs;
        changed.resize(4096 + growth);
        changed += all.substr(4096);
    }
    replace(changed);
    const Snapshot read = read_statistics(file_);
    ASSERT_EQ(read.tables.size(), 2u);
    ASSERT_EQ(read.tables[0].rows.size(), 1u);
    EXPECT_EQ(read.tables[0].rows[0].texts[1], "seven");
    ASSERT_EQ(read.tables[1].rows.size(), 1u);
    EXPECT_EQ(read.tables[1].rows[0].words[1], (std::vector<std::uint64_t>{10, 20, 30, 40}));
}

TEST_F(StatisticsTest, AFileOfAnEnemyIsRefused) {
    std::string good;
    {
        const auto segment = writer();
        write_thing(*segment, 0, 7, "seven", 70);
        good = bytes();
    }
    const auto refused = [&](const std::string& bytes) {
        replace(bytes);
        return error_of([&] { (void)read_statistics(file_); });
    };
    EXPECT_EQ(refused(good), 0);
    EXPECT_EQ(refused(""), EPROTO);
    EXPECT_EQ(refused(good.substr(0, 40)), EPROTO);
    EXPECT_EQ(refused(good.substr(0, 4120)), EPROTO);
    std::string other = good;
    other[0] = 'x';
    EXPECT_EQ(refused(other), EPROTO);
    other = good;
    other[8] = 2;  // the version
    EXPECT_EQ(refused(other), EPROTONOSUPPORT);
    EXPECT_EQ(error_of([&] { (void)read_statistics("/dev/null"); }), EPROTO);
    EXPECT_EQ(error_of([&] { (void)read_statistics(file_.string() + "-none"); }), ENOENT);
    std::filesystem::create_symlink("/etc/passwd", file_.string() + "-link");
    EXPECT_EQ(error_of([&] { (void)read_statistics(file_.string() + "-link"); }), ELOOP);
    std::filesystem::remove(file_.string() + "-link");

    // Tables or fields that share bytes would be read many times.
    other = good;
    Table table;
    std::memcpy(&table, other.data() + sizeof(Header) + sizeof(Table), sizeof(table));
    Table first;
    std::memcpy(&first, other.data() + sizeof(Header), sizeof(first));
    table.offset = first.offset;
    table.rows = first.rows;
    std::memcpy(other.data() + sizeof(Header) + sizeof(Table), &table, sizeof(table));
    EXPECT_EQ(refused(other), EPROTO);
    other = good;
    Field name;
    char* const name_at = other.data() + sizeof(Header) + 2 * sizeof(Table) + sizeof(Field);
    std::memcpy(&name, name_at, sizeof(name));
    name.count = static_cast<std::uint16_t>(first.row_bytes - name.offset);  // the field behind it begins in it
    std::memcpy(name_at, &name, sizeof(name));
    EXPECT_EQ(refused(other), EPROTO);

    // Any word of the description may be anything.
    std::mt19937_64 random(1);
    const std::size_t described = sizeof(Header) + 2 * sizeof(Table) + 5 * sizeof(Field);
    const std::uint64_t values[] = {0,  1,          2,          7,          63,
                                    64, 0x7fffffff, 0xffffffff, 1ull << 32, std::numeric_limits<std::uint64_t>::max()};
    int accepted = 0;
    for (int i = 0; i < 3000; ++i) {
        other = good;
        for (int k = 0; k < 3; ++k) {
            const std::uint64_t value = random() % 4 == 0 ? random() : values[random() % std::size(values)];
            const std::size_t bytes = random() % 2 == 0 ? 4 : 8;
            std::memcpy(other.data() + random() % (described - 8) / 4 * 4, &value, bytes);
        }
        accepted += refused(other) == 0;
    }
    EXPECT_GT(accepted, 0);  // many words are only shown
}

TEST_F(StatisticsTest, AFileThatWouldTakeMuchMoreMemoryThanItHasIsRefused) {
    {
        const auto segment = writer();
        write_thing(*segment, 0, 7, "seven", 70);
        std::string overlapping = bytes();
        Field last;
        const std::size_t at = sizeof(Header) + 2 * sizeof(Table) + 2 * sizeof(Field);
        std::memcpy(&last, overlapping.data() + at, sizeof(last));
        last.offset = sizeof(Sequence);
        last.count = 5;  // with the others, more than a row has
        std::memcpy(overlapping.data() + at, &last, sizeof(last));
        replace(overlapping);
        EXPECT_EQ(error_of([&] { (void)read_statistics(file_); }), EPROTO);
    }
    std::filesystem::remove(file_);
    constexpr std::uint32_t kRows = 900'000;
    const SegmentWriter segment(SegmentOptions{.file = file_, .name = "test"},
                                {{"things", kRows, {{"thing", Kind::id}, {"a"}, {"b"}, {"c"}, {"d"}}}});
    EXPECT_EQ(error_of([&] { (void)read_statistics(file_); }), 0);
    const UniqueFd fd(::open(file_.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), &kRows, sizeof(kRows), sizeof(Header) + offsetof(Table, used)),
              static_cast<ssize_t>(sizeof(kRows)));
    EXPECT_EQ(error_of([&] { (void)read_statistics(file_); }), EPROTO);
}

class FlightRecorderTest : public StatisticsTest {
protected:
    FlightRecorderTest()
        : segment_(SegmentOptions{.file = file_, .name = "test"}, {FlightRecorder::table()}),
          output_(::open("/dev/null", O_WRONLY | O_CLOEXEC)) {
        set_log_output(output_.get());
    }
    ~FlightRecorderTest() override { set_log_output(STDERR_FILENO); }
    /// The texts, the oldest first.
    [[nodiscard]] std::vector<std::string> kept() const {
        const Snapshot read = read_statistics(file_);
        const ReadTable& events = *read.table("event");
        std::map<std::uint64_t, std::string> all;
        for (const ReadRow& row : events.rows) {
            all[row.words[0][0]] = row.texts[events.field("text").value()];
        }
        std::vector<std::string> texts;
        for (const auto& [id, text] : all) {
            texts.push_back(text);
        }
        return texts;
    }

    SegmentWriter segment_;
    UniqueFd output_;
};

TEST_F(FlightRecorderTest, KeepsTheLastLines) {
    log_warning("before");
    {
        const FlightRecorder recorder(segment_, 0);
        log_info("line {}", 1);
        log_error("{}", std::string(500, 'x'));
        EXPECT_EQ(kept(), (std::vector<std::string>{"line 1", std::string(200, 'x')}));
        for (int i = 0; i < 5000; ++i) {
            log_info("line {}", i);
        }
        const std::vector<std::string> all = kept();
        EXPECT_EQ(all.size(), 4096u);
        EXPECT_EQ(all.back(), "line 4999");
        EXPECT_EQ(all.front(), "line 904");
    }
    log_info("after");
    EXPECT_EQ(kept().back(), "line 4999");
}

TEST_F(FlightRecorderTest, KeepsTheLinesOfAllThreads) {
    const FlightRecorder recorder(segment_, 0);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([thread] {
            for (int i = 0; i < 500; ++i) {
                log_info("{} of {}", i, thread);
            }
        });
    }
    for (std::thread& each : threads) {
        each.join();
    }
    const std::vector<std::string> all = kept();
    EXPECT_EQ(all.size(), 2000u);
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 2000u);
}

}  // namespace
}  // namespace pollcore::statistics
