// Tests a reader that is far slower than its sender: with credits the sender waits, and each message arrives once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "give_way.hpp"
#include "message_line.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kReceives = 8;
constexpr std::uint64_t kMessages = 200'000;
constexpr auto kPatience = std::chrono::seconds(120);

Config one_worker() {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    config.devices.emplace_back().name = "d";
    config.workers.push_back({.name = "w", .core = 1});
    config.workers.back().idle = IdlePolicy::yield;
    return config;
}

std::uint64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmRSS:")) {
            return std::strtoull(line.c_str() + 6, nullptr, 10);
        }
    }
    return 0;
}

// The sender sends in every turn; the reader reads 1 to 32 messages in one turn of four. The sender keeps four times as
// many messages in flight as the reader has receives. So on any machine most messages wait for credit.
TEST(SlowReader, GetsEachMessageOnceWhileItsSenderWaits) {
    Runtime runtime(one_worker());
    test::MessageLine line(runtime, FlowControl::credits, kReceives);
    const Counter& waits = runtime.worker_counters(0).waits_for_credit;
    std::mt19937 random(4);
    std::uint64_t resident = 0;
    const auto until = Clock::now() + kPatience;
    while (line.received() < kMessages) {
        line.send(std::min<std::uint64_t>(test::MessageLine::kOnTheirWay / 2, kMessages - line.received()));
        if (random() % 4 == 0) {
            line.receive(1 + random() % 32, [](std::uint64_t number, std::span<const std::byte> rest) {
                ASSERT_TRUE(std::all_of(rest.begin(), rest.end(),
                                        [&](std::byte b) { return b == static_cast<std::byte>(number); }));
            });
        }
        ASSERT_FALSE(HasFatalFailure());
        if (resident == 0 && line.received() > kMessages / 10) {
            resident = resident_kib();  // all allocations have been made by now
        }
        test::give_way();
        ASSERT_LT(Clock::now(), until) << line.received() << " messages have come, and no more do";
    }
    std::printf("%lu of %lu messages waited; resident memory grew by %ld KiB\n",
                static_cast<unsigned long>(waits.value()), static_cast<unsigned long>(kMessages),
                static_cast<long>(resident_kib()) - static_cast<long>(resident));
    EXPECT_GT(waits.value(), kMessages / 2);
    EXPECT_EQ(runtime.rnr_counts().value().received, 0u);
    EXPECT_EQ(runtime.rnr_counts().value().sent, 0u);
    EXPECT_LT(resident_kib(), resident + 1024);
}

}  // namespace
}  // namespace pollcore
