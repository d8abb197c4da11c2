// A reader that is far slower than its sender: with credits the sender waits, and each message comes once.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kBytes = 64;
constexpr std::uint32_t kOnTheirWay = 64;
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

std::uint64_t sum_of(std::uint64_t number) { return (number ^ 0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93; }

/// From one queue pair to the pool of another, both of this thread.
class Line {
public:
    explicit Line(Runtime& runtime)
        : session_(runtime.open_session({.pool_buffers = 2 * kReceives})),
          pool_(runtime.create_receive_pool({.session = &session_, .buffers = 2 * kReceives, .buffer_bytes = kBytes})),
          memory_(runtime.allocate(std::size_t{kOnTheirWay} * kBytes)),
          from_(runtime.create_queue_pair(
              {.shares = {{.session = &session_, .send_depth = kOnTheirWay}}, .recv_depth = 8, .flow = FlowControl::credits})),
          to_(runtime.create_queue_pair(
              {.shares = {{.session = &session_}}, .recv_depth = kReceives, .pool = &pool_, .flow = FlowControl::credits})) {
        const QpInfo info = from_.info();
        from_.connect(to_.info());
        to_.connect(info);
    }

    [[nodiscard]] std::uint64_t read_so_far() const { return read_; }

    /// What there is room for: those on their way are not read yet.
    void send() {
        while (sent_ < kMessages && sent_ - read_ < kOnTheirWay / 2) {
            const std::uint64_t at = sent_ % kOnTheirWay * kBytes;
            const std::array<std::uint64_t, 2> head{sent_, sum_of(sent_)};
            std::memcpy(memory_.data() + at, head.data(), sizeof head);
            std::memset(memory_.data() + at + sizeof head, static_cast<int>(sent_ & 0xff), kBytes - sizeof head);
            // A signal for every 16th: the others are retired with it.
            const std::uint8_t flags = sent_ % 16 == 15 ? kSignaled : 0;
            const Refusal refusal = session_.try_submit({.tag = sent_,
                                                         .sge = {memory_.addr() + at, kBytes, memory_.lkey()},
                                                         .qp = from_.handle(),
                                                         .opcode = Opcode::send,
                                                         .flags = flags,
                                                         .num_sge = 1});
            if (refusal == Refusal::send_queue_full) {
                return;  // they were read, and their requests have not been retired yet
            }
            ASSERT_EQ(refusal, Refusal::none);
            ++sent_;
        }
    }
    /// Reads `most` messages at most, and gives their buffers back.
    void read(std::size_t most) {
        Completion some[32];
        const std::size_t n = session_.poll(std::span(some).first(most));
        const std::uint64_t before = read_;
        for (std::size_t i = 0; i < n; ++i) {
            ASSERT_TRUE(some[i].ok()) << status_name(some[i].status);
            if (some[i].pooled()) {
                const std::span<const std::byte> message = pool_.message(some[i]);
                std::array<std::uint64_t, 2> head{};
                std::memcpy(head.data(), message.data(), sizeof head);
                ASSERT_EQ(head[0], read_);
                ASSERT_EQ(head[1], sum_of(head[0]));
                const auto rest = message.subspan(sizeof head);
                ASSERT_TRUE(std::all_of(rest.begin(), rest.end(), [&](std::byte b) { return b == static_cast<std::byte>(head[0]); }));
                ++read_;
            }
        }
        if (read_ != before) {
            ASSERT_EQ(session_.release(std::span(some).first(n)).refusal, Refusal::none);
        }
    }

private:
    Session session_;
    ReceivePool pool_;
    MemoryRegion memory_;
    QueuePair from_;
    QueuePair to_;
    std::uint64_t sent_ = 0;
    std::uint64_t read_ = 0;
};

std::uint64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmRSS:")) {
            return std::strtoull(line.c_str() + 6, nullptr, 10);
        }
    }
    return 0;
}

// The reader reads in one of four turns of the sender, one message or up to 32, and four times as many are on their way as it has receives.
// Whoever is faster on this machine, most messages find no credit at once.
TEST(SlowReader, GetsEachMessageOnceWhileItsSenderWaits) {
    Runtime runtime(one_worker());
    Line line(runtime);
    const Counter& waits = runtime.worker_counters(0).waits_for_credit;
    std::mt19937 random(4);
    std::uint64_t resident = 0;
    const auto until = Clock::now() + kPatience;
    while (line.read_so_far() < kMessages && !HasFatalFailure()) {
        line.send();
        if (random() % 4 == 0) {
            line.read(1 + random() % 32);
        }
        if (resident == 0 && line.read_so_far() > kMessages / 10) {
            resident = resident_kib();  // whatever there is to be made is there
        }
        sched_yield();
        ASSERT_LT(Clock::now(), until) << line.read_so_far() << " messages have come, and no more do";
    }
    if (HasFatalFailure()) {
        return;
    }
    std::printf("%lu of %lu messages waited; resident memory grew by %ld KiB\n", static_cast<unsigned long>(waits.value()),
                static_cast<unsigned long>(kMessages), static_cast<long>(resident_kib()) - static_cast<long>(resident));
    EXPECT_GT(waits.value(), kMessages / 2);
    EXPECT_EQ(runtime.rnr_counts().value().received, 0u);
    EXPECT_EQ(runtime.rnr_counts().value().sent, 0u);
    EXPECT_LT(resident_kib(), resident + 1024);
}

}  // namespace
}  // namespace pollcore
