// The counters of ports: which files are read, and that the rows follow them.
#include "statistics/port_counters.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "pollcore/statistics.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore::statistics {
namespace {

class PortCountersTest : public ::testing::Test {
protected:
    using Rows = std::map<std::pair<std::uint64_t, std::string>, std::uint64_t>;  // (device, name) to value

    PortCountersTest()
        : root_(std::filesystem::temp_directory_path() / ("port-counters-" + std::to_string(::getpid()))),
          file_(root_ / "segment") {
        std::filesystem::remove_all(root_);
        for (const char* port : {"a/1", "b/1"}) {
            std::filesystem::create_directories(root_ / port / "counters");
            std::filesystem::create_directories(root_ / port / "hw_counters");
        }
        segment_.emplace(SegmentOptions{.file = file_, .name = "test", .cycles_per_second = 1},
                         std::vector<TableSpec>{PortCounters::table()});
    }
    ~PortCountersTest() override { std::filesystem::remove_all(root_); }

    void write(const std::string& path, const std::string& text) const { std::ofstream(root_ / path) << text; }
    void start() {
        counters_.emplace(*segment_, 0, std::vector<PortCounters::Port>{{1, root_ / "a/1"}, {7, root_ / "b/1"}},
                          [this] { began_.store(true); });
    }
    [[nodiscard]] Rows rows() const {
        Rows all;
        const Snapshot read = read_statistics(file_);
        const ReadTable& table = read.tables.at(0);
        for (const ReadRow& row : table.rows) {
            all[{row.words[*table.field("device")][0], row.texts[*table.field("name")]}] =
                row.words[*table.field("value")][0];
        }
        return all;
    }
    /// Waits for these rows. The time limit only ends a test that fails.
    void expect(const Rows& wanted) const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
        while (rows() != wanted && std::chrono::steady_clock::now() < end) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        EXPECT_EQ(rows(), wanted);
    }

    std::filesystem::path root_;
    std::filesystem::path file_;
    std::atomic<bool> began_{false};
    std::optional<SegmentWriter> segment_;
    std::optional<PortCounters> counters_;
};

TEST_F(PortCountersTest, TheRowsFollowTheFiles) {
    write("a/1/counters/port_xmit_data", "12\n");
    write("a/1/hw_counters/out_of_buffer", "18446744073709551615\n");
    write("a/1/hw_counters/lifespan", "10\n");
    write("b/1/counters/port_xmit_data", "34\n");
    start();
    expect({{{1, "out_of_buffer"}, 18446744073709551615u}, {{1, "port_xmit_data"}, 12}, {{7, "port_xmit_data"}, 34}});
    EXPECT_TRUE(began_.load());
    write("b/1/counters/port_xmit_data", "35\n");
    write("a/1/hw_counters/out_of_buffer", "");  // the kernel does not answer any more
    expect({{{1, "port_xmit_data"}, 12}, {{7, "port_xmit_data"}, 35}});
    write("a/1/hw_counters/out_of_buffer", "5");
    expect({{{1, "out_of_buffer"}, 5}, {{1, "port_xmit_data"}, 12}, {{7, "port_xmit_data"}, 35}});
}

TEST_F(PortCountersTest, WhatIsNoNumberHasNoRow) {
    write("a/1/counters/good", "1\n");
    write("a/1/counters/text", "N/A (no PMA)\n");
    write("a/1/counters/too_large", "18446744073709551616\n");
    std::filesystem::create_directories(root_ / "a/1/counters/folder");
    start();
    expect({{{1, "good"}, 1}});
}

TEST_F(PortCountersTest, ADeviceWithoutCountersHasNone) {
    std::filesystem::remove_all(root_ / "a");
    write("b/1/hw_counters/one", "1");
    start();
    expect({{{7, "one"}, 1}});
}

}  // namespace
}  // namespace pollcore::statistics
