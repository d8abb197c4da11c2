// Kills attached processes at any moment, while another process checks its own traffic. Also kills the daemon.
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

#include <gtest/gtest.h>

#include "attach/belongings.hpp"
#include "attach/daemon_fixture.hpp"
#include "mlx5_model.hpp"
#include "patient.hpp"

namespace pollcore::test {
namespace {

/// The kernel's resources of the verbs device, for all processes. Empty for a software device and for the model of an
/// mlx5 HCA, because these devices exist only in a process and the kernel does not know them.
std::string device_belongings(const DeviceConfig& device) {
    if (device.kind != DeviceConfig::Kind::verbs || test::Mlx5Model::is_there()) {
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

class KillTest : public DaemonTest {
protected:
    /// In each round, `death` starts one process that attaches, and returns after a SIGKILL has ended this process.
    /// Checks that nothing of that process remains and that another process does not notice. `attached` counts the
    /// processes whose objects were seen in the daemon.
    template <class Death>
    void kill(int rounds, int& attached, Death death) {
        Process daemon = start_daemon();
        Witness witness(socket());
        Attachment looker(test::patient({.path = socket()}));
        const auto began = Clock::now();
        while (witness.checked() < 100) {
            ASSERT_LT(Clock::now() - began, kPatience) << daemon.err();
            std::this_thread::sleep_for(500us);
        }
        const Things things = Things::at(looker);
        // The daemon makes some objects for the first process that attaches, and keeps them.
        {
            Process first = start("attached-load", {"load", socket(), "1"});
            while (first.out().find("running") == std::string::npos) {
                ASSERT_LT(Clock::now() - began, kPatience) << first.out() << daemon.err();
                std::this_thread::sleep_for(500us);
            }
        }
        while (Things::at(looker) != things) {
            ASSERT_LT(Clock::now() - began, kPatience) << daemon.err();
            std::this_thread::sleep_for(1ms);
        }
        // Wait until only the threads of the witness and of the looker remain.
        while (connection_threads_of(daemon.pid()) != 2) {
            ASSERT_LT(Clock::now() - began, kPatience) << daemon.err();
            std::this_thread::sleep_for(1ms);
        }
        const std::string device_before = device_belongings(config_.devices[0]);
        const Belongings before = settled_belongings_of(daemon.pid());
        const std::uint64_t checked = witness.checked();
        for (int round = 0; round < rounds; ++round) {
            const bool was_there = death([&] { return Things::at(looker) != things; });
            const auto killed = Clock::now();
            while (Things::at(looker) != things) {
                ASSERT_LT(Clock::now() - killed, kPatience) << "round " << round << ": not everything of it is gone\n"
                                                            << daemon.err();
                std::this_thread::sleep_for(200us);
            }
            attached += was_there;
        }
        // The daemon may not yet have closed the socket of the last process.
        for (const auto until = Clock::now() + kPatience;
             Belongings::of(daemon.pid()) != before && Clock::now() < until;) {
            std::this_thread::sleep_for(1ms);
        }
        EXPECT_EQ(Belongings::of(daemon.pid()), before);
        EXPECT_EQ(device_belongings(config_.devices[0]), device_before);
        EXPECT_TRUE(witness.checks_more_than(checked + 100));
        witness.join();
        EXPECT_EQ(witness.wrong(), "");
        EXPECT_EQ(looker.control_counters().cut_short.value(), 0u)
            << "the device flushes what there is, and nobody waits until it is given up";
        std::printf(
            "%d processes were killed, %d of them with something to clean up; %llu messages beside them were checked\n",
            rounds, attached, static_cast<unsigned long long>(witness.checked() - checked));
        daemon.signal(SIGTERM);
        EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    }
};

TEST_F(KillTest, OfAProcessAtAnyMomentLeavesNothingAndNobodyElseNotices) {
    const char* given_seed = std::getenv("POLLCORE_KILL_SEED");
    const unsigned seed = given_seed != nullptr ? static_cast<unsigned>(std::atoi(given_seed)) : std::random_device{}();
    SCOPED_TRACE("POLLCORE_KILL_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    // The longest life of a process: at first a little more than twice the time that a process needs until its traffic
    // runs. Then it follows the machine's speed, so that about half of them live long enough to attach.
    std::chrono::microseconds life{0};
    const int rounds = rounds_of("POLLCORE_KILLS", 1000);
    int attached = 0;
    kill(rounds, attached, [&](const auto& there) {
        const auto began = Clock::now();
        Process victim = start("attached-load", {"load", socket(), std::to_string(random())});
        if (life.count() == 0) {
            while (victim.out().find("running") == std::string::npos && Clock::now() - began < kPatience) {
                std::this_thread::sleep_for(500us);
            }
            life = std::chrono::duration_cast<std::chrono::microseconds>(2 * (Clock::now() - began)) + 5ms;
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned long>(life.count())));
        }
        const bool was_there = there();
        life += was_there ? -life / 16 : life / 16;
        victim.signal(SIGKILL);
        EXPECT_EQ(victim.wait(), 128 + SIGKILL) << victim.out();
        return was_there;
    });
    EXPECT_GT(attached, rounds / 4);
}

class KillAtTest : public KillTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(KillAtTest, LeavesNothingAndNobodyElseNotices) {
    int attached = 0;  // not checked: the daemon may have learned of the death before the test did
    kill(rounds_of("POLLCORE_KILLS", 1000) / 10, attached, [&](const auto& there) {
        Process victim = start("hostile", {GetParam(), socket(), "0"});
        EXPECT_EQ(victim.wait(), 128 + SIGKILL) << victim.out();
        return there();
    });
}

INSTANTIATE_TEST_SUITE_P(InTheMiddle, KillAtTest,
                         ::testing::Values("in-the-handshake", "in-a-registration", "in-a-ring-write"),
                         [](const auto& where) {
                             std::string name = where.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

TEST_F(KillTest, OfTheDaemonEndsEachRequestOnceAndItsClientsAttachAgain) {
    const int rounds = rounds_of("POLLCORE_DAEMON_KILLS", 5);
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::unique_ptr<Process>> clients;
        {
            Process daemon = start_daemon();
            for (int i = 0; i < 3; ++i) {
                clients.push_back(std::make_unique<Process>(
                    std::vector<std::string>{test_program("attached-load"), "survive", socket()},
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
