// A fixture that runs a pollcored, and attached clients whose traffic and calls are checked while other processes
// attack the daemon.
#pragma once

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "daemon_process.hpp"
#include "give_way.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/config.hpp"
#include "test_cpus.hpp"

namespace pollcore::test {

using Clock = std::chrono::steady_clock;

inline std::string test_program(const std::string& name) {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

inline int rounds_of(const char* variable, int usual) {
    const char* given = std::getenv(variable);
    return given != nullptr ? std::atoi(given) : usual;
}

/// A configuration for the device that POLLCORE_TEST_DEVICE names, as in tests/conformance.
inline Config daemon_config(const std::filesystem::path& directory) {
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
    config.workers.push_back({.name = "w0", .core = last_cpu(), .idle = IdlePolicy::yield});
    config.share_cores = true;     // other tests may run at the same time
    config.drain_timeout = 200ms;  // for processes that stay attached
    config.attach.path = directory / "attach.sock";
    config.log_level = LogLevel::warning;
    return config;
}

class DaemonTest : public ::testing::Test {
protected:
    [[nodiscard]] std::string socket() const { return config_.attach.path; }
    /// Starts a daemon. `rights` are options of setpriv(1).
    [[nodiscard]] Process start_daemon(const std::vector<std::string>& rights = {},
                                       const std::vector<std::string>& environment = {}) {
        // The daemon dies with this process, however this process ends.
        std::vector<std::string> all{"/usr/bin/setpriv", "--pdeathsig", "KILL"};
        all.insert(all.end(), rights.begin(), rights.end());
        all.insert(all.end(),
                   {pollcored_path(), "--config", directory_.write("pollcored.toml", print_config(config_)).string()});
        return Process(all, environment, directory_.path());
    }
    /// An environment in which the daemon believes that the kernel has no SO_PASSRIGHTS. The daemon then receives
    /// descriptors also from processes that are not attached.
    [[nodiscard]] static std::vector<std::string> as_on_an_old_kernel() {
        const char* options = std::getenv("ASAN_OPTIONS");
        return {"LD_PRELOAD=" + test_program("old-kernel.so"),
                std::string("ASAN_OPTIONS=verify_asan_link_order=0:") + (options != nullptr ? options : "")};
    }
    [[nodiscard]] Process start(const std::string& program, const std::vector<std::string>& arguments) {
        std::vector<std::string> all{test_program(program)};
        all.insert(all.end(), arguments.begin(), arguments.end());
        return Process(all, {}, directory_.path());
    }

    TemporaryDirectory directory_;
    Config config_ = daemon_config(directory_.path());
};

/// Sends itself numbered messages, and checks each one that it receives.
class Witness {
public:
    explicit Witness(const std::string& path)
        : daemon_({.path = path, .name = "witness", .timeout = kPatience}),
          session_(daemon_.open_session()),
          memory_(daemon_.allocate(2 * kMessages * kBytes, Access::all())),
          thread_([this] { run(); }) {}
    ~Witness() {
        stop_.store(true);
        thread_.join();
    }

    [[nodiscard]] Attachment& daemon() { return daemon_; }
    [[nodiscard]] std::uint64_t checked() const { return checked_.load(); }
    /// Waits until the witness has checked more than this many messages. Returns false if that takes longer than
    /// kPatience.
    [[nodiscard]] bool checks_more_than(std::uint64_t messages) const {
        for (const auto until = Clock::now() + kPatience; checked() <= messages && Clock::now() < until;) {
            std::this_thread::sleep_for(1ms);
        }
        return checked() > messages;
    }
    [[nodiscard]] std::string wrong() const { return wrong_; }  // valid only after the thread has ended
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
    [[nodiscard]] static std::byte byte_of(std::uint64_t number, std::size_t at) {
        return static_cast<std::byte>(number * 7 + at);
    }

    void run() {
        try {
            QueuePair a =
                daemon_.create_queue_pair({.shares = {{.session = &session_}}, .remote_access = RemoteAccess::all()});
            QueuePair b =
                daemon_.create_queue_pair({.shares = {{.session = &session_}}, .remote_access = RemoteAccess::all()});
            const QpInfo info = a.info();
            a.connect(b.info());
            b.connect(info);
            std::uint64_t sent = 0;
            std::uint64_t received = 0;
            std::uint64_t completed = 0;
            std::uint64_t posted = 0;
            const auto sge = [&](std::uint64_t number, bool from) {
                return Sge{memory_.addr() + static_cast<std::uint64_t>(slot(number, from) - memory_.data()), kBytes,
                           memory_.lkey()};
            };
            const auto require = [&](bool holds, const char* what) {
                if (!holds && wrong_.empty()) {
                    wrong_ = std::string(what) + " at message " + std::to_string(received);
                }
            };
            while ((!stop_.load(std::memory_order_relaxed) || received < sent) && wrong_.empty()) {
                while (posted < received + kMessages) {
                    require(session_.try_submit({.tag = posted,
                                                 .sge = sge(posted, false),
                                                 .qp = b.handle(),
                                                 .opcode = Opcode::recv,
                                                 .num_sge = 1}) == Refusal::none,
                            "a receive was refused");
                    ++posted;
                }
                while (!stop_.load(std::memory_order_relaxed) && sent < received + kMessages / 2 &&
                       sent < completed + kMessages / 2) {
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
                    test::give_way();
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

/// Makes and closes a session, two connected queue pairs and a region, again and again, over its own attachment.
class Caller {
public:
    explicit Caller(const std::string& path)
        : daemon_({.path = path, .name = "caller", .timeout = kPatience}), thread_([this] { run(); }) {}
    ~Caller() {
        stop_.store(true);
        thread_.join();
    }

    /// Rounds in which every call was answered correctly.
    [[nodiscard]] std::uint64_t rounds() const { return rounds_.load(); }
    [[nodiscard]] std::chrono::microseconds longest_call() const {
        return std::chrono::microseconds(longest_us_.load());
    }
    /// Stops the thread, and returns the first error, or an empty text if there was no error.
    [[nodiscard]] std::string end() {
        stop_.store(true);
        while (!ended_.load()) {
            std::this_thread::sleep_for(1ms);
        }
        return wrong_;
    }

private:
    template <class F>
    auto timed(F&& call) {
        struct Clocked {
            std::atomic<std::int64_t>& longest;
            Clock::time_point since = Clock::now();
            ~Clocked() {
                longest.store(
                    std::max(longest.load(),
                             std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - since).count()));
            }
        } clocked{longest_us_};
        return call();
    }
    void run() {
        try {
            while (!stop_.load(std::memory_order_relaxed)) {
                Session session =
                    timed([&] { return daemon_.open_session({.submission_slots = 64, .completion_slots = 64}); });
                const QueuePairOptions options{.shares = {{.session = &session, .send_depth = 4}},
                                               .recv_depth = 4,
                                               .remote_access = RemoteAccess::all()};
                QueuePair a = timed([&] { return daemon_.create_queue_pair(options); });
                QueuePair b = timed([&] { return daemon_.create_queue_pair(options); });
                const QpInfo info = timed([&] { return a.info(); });
                timed([&] { a.connect(b.info()); });
                timed([&] { b.connect(info); });
                MemoryRegion memory = timed([&] { return daemon_.allocate(65536, Access::all()); });
                timed([&] { memory = MemoryRegion(); });
                if (!timed([&] { return a.close(); })) {
                    throw std::runtime_error("a queue pair with nothing in flight was cut short");
                }
                rounds_.fetch_add(1);
            }
        } catch (const std::exception& error) {
            wrong_ = error.what();
        }
        ended_.store(true);
    }

    Attachment daemon_;
    std::atomic<bool> stop_{false};
    std::atomic<bool> ended_{false};
    std::atomic<std::uint64_t> rounds_{0};
    std::atomic<std::int64_t> longest_us_{0};
    std::string wrong_;
    std::thread thread_;
};

}  // namespace pollcore::test
