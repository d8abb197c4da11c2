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

#include "daemon_process.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/config.hpp"

namespace pollcore::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string load_path() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "attached-load";
}

int rounds_of(const char* variable, int usual) {
    const char* given = std::getenv(variable);
    return given != nullptr ? std::atoi(given) : usual;
}

/// On the device of the environment, as for tests/conformance.
Config daemon_config(const std::filesystem::path& directory) {
    Config config;
    const char* device = std::getenv("POLLCORE_TEST_DEVICE");
    const std::string text = device != nullptr ? device : "soft";
    config.devices.push_back({.name = "net0"});
    if (text.starts_with("verbs:")) {
        config.devices[0].kind = DeviceConfig::Kind::verbs;
        config.devices[0].verbs_name = text.substr(6);
    } else if (text == "soft:mlx5") {
        config.devices[0].profile = DeviceConfig::Profile::mlx5;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    std::uint32_t last = 0;
    for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        last = CPU_ISSET(cpu, &set) ? cpu : last;
    }
    config.workers.push_back({.name = "w0", .core = last, .idle = IdlePolicy::yield});
    config.lock_directory = directory;
    config.attach.path = directory / "attach.sock";
    config.log_level = LogLevel::warning;
    return config;
}

class KillTest : public testing::Test {
protected:
    [[nodiscard]] std::string socket() const { return config_.attach.path; }
    [[nodiscard]] Process start_daemon() {
        return Process({pollcored_path(), "--config", directory_.write("pollcored.toml", print_config(config_)).string()}, {},
                       directory_.path());
    }
    [[nodiscard]] Process start(const std::vector<std::string>& arguments) {
        std::vector<std::string> all{load_path()};
        all.insert(all.end(), arguments.begin(), arguments.end());
        return Process(all, {}, directory_.path());
    }

    TemporaryDirectory directory_;
    Config config_ = daemon_config(directory_.path());
};

/// Sends itself numbered messages, and looks at each that comes.
class Witness {
public:
    explicit Witness(const std::string& path)
        : daemon_({.path = path, .name = "witness", .timeout = kPatience}),
          session_(daemon_.open_session()),
          memory_(daemon_.allocate(2 * kMessages * kBytes)),
          thread_([this] { run(); }) {}
    ~Witness() {
        stop_.store(true);
        thread_.join();
    }

    [[nodiscard]] Attachment& daemon() { return daemon_; }
    [[nodiscard]] std::uint64_t checked() const { return checked_.load(); }
    [[nodiscard]] std::string wrong() const { return wrong_; }  // once it has stopped
    void stop() { stop_.store(true); }
    void join() {
        stop();
        while (!ended_.load()) {
            std::this_thread::sleep_for(1ms);
        }
    }

private:
    static constexpr std::size_t kMessages = 32;
    static constexpr std::size_t kBytes = 256;

    [[nodiscard]] std::byte* slot(std::uint64_t number, bool from) const {
        return memory_.data() + ((number % kMessages) + (from ? 0 : kMessages)) * kBytes;
    }
    [[nodiscard]] static std::byte byte_of(std::uint64_t number, std::size_t at) { return static_cast<std::byte>(number * 7 + at); }

    void run() {
        try {
            QueuePair a = daemon_.create_queue_pair({.shares = {{.session = &session_}}});
            QueuePair b = daemon_.create_queue_pair({.shares = {{.session = &session_}}});
            const QpInfo info = a.info();
            a.connect(b.info());
            b.connect(info);
            std::uint64_t sent = 0;
            std::uint64_t received = 0;
            std::uint64_t completed = 0;
            std::uint64_t posted = 0;
            const auto sge = [&](std::uint64_t number, bool from) {
                return Sge{memory_.addr() + static_cast<std::uint64_t>(slot(number, from) - memory_.data()), kBytes, memory_.lkey()};
            };
            const auto require = [&](bool holds, const char* what) {
                if (!holds && wrong_.empty()) {
                    wrong_ = std::string(what) + " at message " + std::to_string(received);
                }
            };
            while ((!stop_.load(std::memory_order_relaxed) || received < sent) && wrong_.empty()) {
                while (posted < received + kMessages) {
                    require(session_.try_submit({.tag = posted, .sge = sge(posted, false), .qp = b.handle(), .opcode = Opcode::recv, .num_sge = 1}) ==
                                Refusal::none,
                            "a receive was refused");
                    ++posted;
                }
                while (!stop_.load(std::memory_order_relaxed) && sent < received + kMessages / 2 && sent < completed + kMessages / 2) {
                    for (std::size_t at = 0; at < kBytes; ++at) {
                        slot(sent, true)[at] = byte_of(sent, at);
                    }
                    require(session_.try_submit({.tag = sent,
                                                 .sge = sge(sent, true),
                                                 .qp = a.handle(),
                                                 .opcode = Opcode::send,
                                                 .flags = kSignaled,
                                                 .num_sge = 1}) == Refusal::none,
                            "a send was refused");
                    ++sent;
                }
                Completion some[16];
                const std::size_t n = session_.poll(some);
                for (std::size_t i = 0; i < n; ++i) {
                    require(some[i].ok(), "a request failed");
                    if (!some[i].from_recv_queue()) {
                        require(some[i].tag == completed, "sends complete out of order");
                        ++completed;
                        continue;
                    }
                    require(some[i].tag == received && some[i].byte_len == kBytes, "messages come out of order");
                    for (std::size_t at = 0; at < kBytes; ++at) {
                        require(slot(received, false)[at] == byte_of(received, at), "a message is not what was sent");
                    }
                    ++received;
                    checked_.fetch_add(1, std::memory_order_relaxed);
                }
                if (n == 0) {
                    sched_yield();
                }
            }
        } catch (const std::exception& error) {
            wrong_ = error.what();
        }
        ended_.store(true);
    }

    Attachment daemon_;
    Session session_;
    MemoryRegion memory_;
    std::atomic<bool> stop_{false};
    std::atomic<bool> ended_{false};
    std::atomic<std::uint64_t> checked_{0};
    std::string wrong_;
    std::thread thread_;
};

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
        Process first = start({"load", socket(), "1"});
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
        Process victim = start({"load", socket(), std::to_string(random())});
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
                clients.push_back(std::make_unique<Process>(std::vector<std::string>{load_path(), "survive", socket()},
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
