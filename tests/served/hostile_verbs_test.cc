// Runs a program that uses libpollcore-verbs.so as wrongly as it can (hostile_verbs.cc) beside two well-behaved
// attached processes and a caller: the completions of the others all arrive with the right data, calls are answered,
// the worker makes no system call and does not wait, but for what Attack names, and nothing is left at the daemon.
//
// POLLCORE_ATTACK_MS is the time that each attack takes (600).
#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>
#include <regex>
#include <string>
#include <vector>

#include "attach/belongings.hpp"
#include "attach/daemon_fixture.hpp"
#include "patient.hpp"
#include "preloaded.hpp"
#include "thread_calls.hpp"

namespace pollcore::test {
namespace {

// The sanitizers' allocator makes system calls in any thread.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCallsCount = false;
#else
constexpr bool kCallsCount = true;
#endif

struct Attack {
    const char* name;
    /// The library asks for events, and the worker signals each of them by one system call.
    bool has_events = false;
    /// The worker allocates when it gets more queue pairs than it ever had (Worker::make_room_to_tell), and the
    /// allocator then asks the kernel for pages, a few kibibytes at a time.
    bool makes_worker_allocate = false;
    friend std::ostream& operator<<(std::ostream& out, const Attack& attack) { return out << attack.name; }
};

/// Watches a thread by strace(1), which stops it only for system calls.
class WatchedThread {
public:
    WatchedThread(pid_t thread, const std::filesystem::path& directory)
        : thread_(thread),
          trace_(directory / "worker-trace"),
          strace_({"/usr/bin/strace", "-p", std::to_string(thread), "-o", trace_.string()}, {}, directory) {
        if (!strace_.await_log("attached")) {
            throw std::runtime_error("strace: " + strace_.err());
        }
    }
    /// Call this when the thread runs again.
    void begin() { waits_before_ = voluntary_switches(); }
    /// Also counts its stops for strace, two for each system call.
    [[nodiscard]] std::uint64_t waits() const { return voluntary_switches() - waits_before_; }
    /// Ends the watching. Returns the system calls, a line for each.
    [[nodiscard]] std::vector<std::string> calls() {
        strace_.signal(SIGINT);
        (void)strace_.wait();
        std::vector<std::string> all;
        std::ifstream lines(trace_);
        for (std::string line; std::getline(lines, line);) {
            if (line.find('(') != std::string::npos) {
                all.push_back(line);
            }
        }
        return all;
    }

private:
    [[nodiscard]] std::uint64_t voluntary_switches() const {
        const std::string status = read_file("/proc/" + std::to_string(thread_) + "/status");
        std::smatch found;
        if (!std::regex_search(status, found, std::regex("\nvoluntary_ctxt_switches:\\s*(\\d+)"))) {
            throw std::runtime_error("thread " + std::to_string(thread_) + " has no status");
        }
        return std::stoull(found[1]);
    }

    pid_t thread_;
    std::filesystem::path trace_;
    Process strace_;
    std::uint64_t waits_before_ = 0;
};

class HostileVerbs : public DaemonTest, public testing::WithParamInterface<Attack> {
protected:
    [[nodiscard]] Process start_over_library(const std::vector<std::string>& words) {
        std::vector<std::string> all{test_program(words[0])};
        all.insert(all.end(), words.begin() + 1, words.end());
        const char* options = std::getenv("ASAN_OPTIONS");
        return Process(all,
                       {"LD_PRELOAD=" + preloaded(), "POLLCORE_SOCKET=" + socket(), "POLLCORE_TEST_VERBS=soft0",
                        "POLLCORE_VERBS_LOG=off",
                        // A program that ends somehow leaks.
                        std::string("ASAN_OPTIONS=detect_leaks=0:") + (options != nullptr ? options : "")},
                       directory_.path());
    }
};

TEST_P(HostileVerbs, HurtsOnlyItself) {
    config_.devices[0].name = "soft0";
    config_.attach.own_memory.all = true;
    config_.workers[0].idle = IdlePolicy::spin;
    config_.drain_timeout = 20s;  // the daemon is slow, because strace traces its worker
    Process daemon = start_daemon();
    Witness one(socket());
    Witness other(socket());
    Attachment looker(test::patient({.path = socket()}));
    ASSERT_TRUE(one.checks_more_than(100) && other.checks_more_than(100)) << daemon.err();
    const auto returns_to = [&](const Things& before) {
        const auto until = Clock::now() + kPatience;
        while (Things::at(looker) != before && Clock::now() < until) {
            std::this_thread::sleep_for(1ms);
        }
        return Things::at(looker);
    };
    const Things things = Things::at(looker);
    // The daemon makes some objects for the first process that attaches, and keeps them.
    ASSERT_EQ(start_over_library({"hostile-verbs", "unloaded-library", "1"}).wait(), 0);
    ASSERT_EQ(returns_to(things), things);
    while (connection_threads_of(daemon.pid()) != 3) {
        std::this_thread::sleep_for(1ms);
    }
    const Belongings before = settled_belongings_of(daemon.pid());
    auto caller = std::make_unique<Caller>(socket());

    WatchedThread worker(thread_of(daemon.pid(), "pollcore-w0"), directory_.path());
    ASSERT_TRUE(one.checks_more_than(one.checked() + 10));
    worker.begin();
    const std::uint64_t events = looker.control_counters().async_events.value();
    const std::uint64_t checked[] = {one.checked(), other.checked()};
    const std::uint64_t called = caller->rounds();
    Process hostile =
        start_over_library({"hostile-verbs", GetParam().name, std::to_string(rounds_of("POLLCORE_ATTACK_MS", 600))});
    EXPECT_EQ(hostile.wait(), 0) << hostile.out() << hostile.err();
    EXPECT_NE(hostile.out().find("done"), std::string::npos) << hostile.out();
    EXPECT_TRUE(one.checks_more_than(checked[0] + 100)) << one.wrong() << daemon.err();
    EXPECT_TRUE(other.checks_more_than(checked[1] + 100)) << other.wrong() << daemon.err();
    for (const auto until = Clock::now() + kPatience; caller->rounds() <= called;) {
        ASSERT_LT(Clock::now(), until) << daemon.err();
        std::this_thread::sleep_for(1ms);
    }
    const std::uint64_t waits = worker.waits();
    const std::vector<std::string> calls = worker.calls();
    // What the software device does in the worker's thread, where a NIC would act by itself: it raises asynchronous
    // events, by a write(2) to an eventfd under a mutex, and it has a lock that yields.
    const auto count = [&](const char* call) {
        return static_cast<std::uint64_t>(
            std::count_if(calls.begin(), calls.end(), [&](const std::string& line) { return line.starts_with(call); }));
    };
    const std::uint64_t writes = count("write(");
    const auto events_since = [&] { return looker.control_counters().async_events.value() - events; };
    // The control thread takes them a little later.
    for (const auto until = Clock::now() + kPatience;
         kCallsCount && !GetParam().has_events && events_since() < writes && Clock::now() < until;) {
        std::this_thread::sleep_for(1ms);
    }
    const std::uint64_t raised = events_since();
    if (kCallsCount) {
        EXPECT_TRUE(GetParam().has_events || writes <= raised)
            << writes << " events were signalled, and " << raised << " taken";
        EXPECT_LE(count("futex("), 4 * raised);
        for (const std::string& call : calls) {
            EXPECT_TRUE(call.starts_with("write(") || call.starts_with("futex(") || call.starts_with("sched_yield(") ||
                        (GetParam().has_events && call.starts_with("sendto(")) ||
                        (GetParam().makes_worker_allocate && call.starts_with("mprotect(")))
                << call;
        }
    }
    // Each call stops twice for strace, and may wait in the kernel. Outside of its calls the worker does not wait. But
    // the first access to a page of the allocator waits if another thread changes the map of the process's memory
    // meanwhile.
    constexpr std::uint64_t kFirstAccesses = 8;
    EXPECT_LE(waits, 3 * calls.size() + (GetParam().makes_worker_allocate ? kFirstAccesses : 0))
        << testing::PrintToString(calls);
    std::printf("%zu calls, %llu waits, %llu events; ", calls.size(), static_cast<unsigned long long>(waits),
                static_cast<unsigned long long>(raised));
    std::printf("%s; the others checked %llu and %llu messages, and made %llu rounds of calls\n",
                hostile.out().substr(0, hostile.out().find('\n')).c_str(),
                static_cast<unsigned long long>(one.checked() - checked[0]),
                static_cast<unsigned long long>(other.checked() - checked[1]),
                static_cast<unsigned long long>(caller->rounds() - called));

    // Another program of verbs finds everything in order.
    Process innocent = start_over_library({"verbs-tests", "--gtest_filter=Verbs.ReadsWritesAndAtomicsMoveTheirBytes"});
    EXPECT_EQ(innocent.wait(), 0) << innocent.out() << innocent.err();
    EXPECT_EQ(caller->end(), "");
    caller.reset();
    EXPECT_EQ(returns_to(things), things) << "not everything of it is gone\n" << daemon.err();
    for (const auto until = Clock::now() + kPatience; Belongings::of(daemon.pid()) != before && Clock::now() < until;) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(Belongings::of(daemon.pid()), before);
    one.join();
    other.join();
    EXPECT_EQ(one.wrong(), "");
    EXPECT_EQ(other.wrong(), "");
    EXPECT_EQ(looker.control_counters().cut_short.value(), 0u)
        << "the device flushes what there is, and nobody waits until it is given up";
    for (Attachment* attached : {&one.daemon(), &other.daemon(), &looker}) {
        EXPECT_TRUE(attached->stop());
    }
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
    EXPECT_LT(daemon.err().size(), 200'000u) << "the log is flooded";
}

INSTANTIATE_TEST_SUITE_P(By, HostileVerbs,
                         testing::Values(Attack{"freed-objects"}, Attack{"exits-in-calls"},
                                         Attack{"closed-descriptors"}, Attack{"unmapped-rings"},
                                         Attack{"garbled-rings"}, Attack{"exhausted-objects", false, true},
                                         Attack{"any-end"}, Attack{"unloaded-library"}, Attack{"wild-requests"},
                                         Attack{"races"}, Attack{"threads"}, Attack{"misused-events", true},
                                         Attack{"forked-children"}, Attack{"forked-children-after-init"}),
                         [](const auto& attack) {
                             std::string name = attack.param.name;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace pollcore::test
