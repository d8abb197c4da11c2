// Processes that are killed: those that are attached, at any moment, beside one whose traffic is checked throughout; and the
// daemon itself.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attach/daemon_fixture.hpp"

namespace pollcore::test {
namespace {

class KillTest : public DaemonTest {};

/// What a process has, by the kernel.
struct Belongings {
    std::size_t descriptors = 0;
    std::size_t shared_mappings = 0;

    static Belongings of(pid_t pid) {
        Belongings all;
        const std::filesystem::path proc = "/proc/" + std::to_string(pid);
        for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator(proc / "fd")) {
            ++all.descriptors;
        }
        std::ifstream maps(proc / "maps");
        for (std::string line; std::getline(maps, line);) {
            all.shared_mappings += line.find("memfd:pollcore") != std::string::npos;
        }
        return all;
    }
    bool operator==(const Belongings&) const = default;
};
void PrintTo(const Belongings& all, std::ostream* out) {
    *out << all.descriptors << " descriptors, " << all.shared_mappings << " shared mappings";
}

struct Things {
    std::uint64_t sessions = 0, queue_pairs = 0, regions = 0, domains = 0;
    static Things at(Attachment& daemon) {
        const ControlCounters& counters = daemon.control_counters();
        return {counters.sessions.value(), counters.queue_pairs.value(), counters.memory_regions.value(),
                counters.protection_domains.value()};
    }
    bool operator==(const Things&) const = default;
};

/// What the kernel has of the verbs device for everybody; nothing of a software device.
std::string device_belongings(const DeviceConfig& device) {
    if (device.kind != DeviceConfig::Kind::verbs) {
        return "";
    }
    const std::string command = "rdma resource show " + device.verbs_name;
    FILE* output = ::popen(command.c_str(), "r");
    std::string text(512, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), output));
    EXPECT_EQ(::pclose(output), 0) << command;
    EXPECT_NE(text.find(" qp "), std::string::npos) << text;
    return text;
}

TEST_F(KillTest, OfAProcessAtAnyMomentLeavesNothingAndNobodyElseNotices) {
    const int rounds = rounds_of("POLLCORE_KILLS", 1000);
    Process daemon = start_daemon();
    Witness witness(socket());
    Attachment looker({.path = socket(), .timeout = kPatience});
    const auto settled = [&] {
        const auto until = Clock::now() + 5s;
        while (witness.checked() < 100 && Clock::now() < until) {
            std::this_thread::sleep_for(1ms);
        }
    };
    settled();
    // Twice as long as one needs to be at work, and a little, is how long they live at most.
    const auto started = Clock::now();
    {
        Process first = start("attached-load", {"load", socket(), "1"});
        while (first.out().find("running") == std::string::npos) {
            ASSERT_LT(Clock::now() - started, kPatience) << first.out();
            std::this_thread::sleep_for(500us);
        }
    }
    const auto life_us = std::chrono::duration_cast<std::chrono::microseconds>(2 * (Clock::now() - started)).count() + 5000;
    while (looker.control_counters().sessions.value() != 1) {
        ASSERT_LT(Clock::now() - started, kPatience) << daemon.err();
        std::this_thread::sleep_for(1ms);
    }
    const Things things = Things::at(looker);
    const std::string device_before = device_belongings(config_.devices[0]);
    const Belongings before = Belongings::of(daemon.pid());
    const std::uint64_t checked = witness.checked();

    const char* given_seed = std::getenv("POLLCORE_KILL_SEED");
    const unsigned seed = given_seed != nullptr ? static_cast<unsigned>(std::atoi(given_seed)) : std::random_device{}();
    SCOPED_TRACE("POLLCORE_KILL_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    std::chrono::nanoseconds worst{0};
    int attached = 0;
    for (int round = 0; round < rounds; ++round) {
        Process victim = start("attached-load", {"load", socket(), std::to_string(random())});
        std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned long>(life_us)));
        const bool was_there = Things::at(looker) != things;
        victim.signal(SIGKILL);
        ASSERT_EQ(victim.wait(), 128 + SIGKILL) << victim.out();
        const auto killed = Clock::now();
        while (Things::at(looker) != things) {
            ASSERT_LT(Clock::now() - killed, 10s) << "round " << round << ": not everything of it is gone\n" << daemon.err();
            std::this_thread::sleep_for(200us);
        }
        if (was_there) {
            worst = std::max<std::chrono::nanoseconds>(worst, Clock::now() - killed);
            ++attached;
        }
    }
    EXPECT_EQ(Belongings::of(daemon.pid()), before);
    EXPECT_EQ(device_belongings(config_.devices[0]), device_before);
    EXPECT_GT(witness.checked(), checked + 100) << "nothing was checked meanwhile";
    witness.join();
    EXPECT_EQ(witness.wrong(), "");
    EXPECT_GT(attached, rounds / 4);
    EXPECT_LT(worst, 1s);
    std::printf("%d processes were killed, %d of them with something to clean up: after %.1f ms at the latest nothing was left; %llu messages "
                "beside them were checked\n",
                rounds, attached, std::chrono::duration<double, std::milli>(worst).count(),
                static_cast<unsigned long long>(witness.checked() - checked));
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

TEST_F(KillTest, OfTheDaemonEndsEachRequestOnceAndItsClientsAttachAgain) {
    const int rounds = rounds_of("POLLCORE_DAEMON_KILLS", 5);
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::unique_ptr<Process>> clients;
        {
            Process daemon = start_daemon();
            for (int i = 0; i < 3; ++i) {
                clients.push_back(std::make_unique<Process>(std::vector<std::string>{test_program("attached-load"), "survive", socket()},
                                                            std::vector<std::string>{}, directory_.path()));
            }
            for (const auto& client : clients) {
                const auto until = Clock::now() + kPatience;
                while (client->out().find("running") == std::string::npos) {
                    ASSERT_LT(Clock::now(), until) << client->out() << client->err() << daemon.err();
                    std::this_thread::sleep_for(2ms);
                }
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(50 + 37 * round));
            daemon.signal(SIGKILL);
            ASSERT_EQ(daemon.wait(), 128 + SIGKILL);
        }
        Process daemon = start_daemon();
        for (const auto& client : clients) {
            EXPECT_EQ(client->wait(), 0) << client->out() << client->err();
            EXPECT_NE(client->out().find("again"), std::string::npos) << client->out();
        }
        daemon.signal(SIGTERM);
        EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    }
}

}  // namespace
}  // namespace pollcore::test
