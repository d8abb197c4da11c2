// Lets each allocation in each call of the public interface fail, one at a time. The call must then succeed or throw,
// older objects must still work, the call must succeed when it is made again, and nothing may be left behind.
//
// Each allocation fails in a separate process, so that the test knows which failure ended the process.
//   POLLCORE_ALLOCATIONS=N  N allocations of each call, spread evenly; if not set, all allocations
//   POLLCORE_ALLOCATION=N   only the Nth allocation of each call
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <new>
#include <string>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"
#include "calls.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#endif

namespace pollcore::testing {
namespace {

// A child's report. `stage` shows how far the child has come, even if the child dies.
struct Report {
    std::atomic<const char*> stage{"not begun"};
    std::atomic<std::uint64_t> counted{0};
    std::atomic<bool> met{false};
};

// A child that runs longer is killed, because it hangs.
constexpr int kChildPatienceMs = 200'000;

bool leaks() {
#if defined(__SANITIZE_ADDRESS__)
    return __lsan_do_recoverable_leak_check() != 0;
#else
    return false;
#endif
}

enum class Outcome { succeeded, failed };

/// A call may throw nothing but these two exceptions.
Outcome make_with_failure(Call& call, World& world, std::uint64_t nth, Allocating whose, Report& report) {
    std::string why;
    Outcome outcome = Outcome::succeeded;
    {
        const FailingAllocation failing(nth, whose);
        try {
            call.make(world);
        } catch (const std::bad_alloc&) {
            outcome = Outcome::failed;
        } catch (const Error&) {
            outcome = Outcome::failed;
        }
        report.counted = FailingAllocation::counted();
        report.met = FailingAllocation::met();
    }
    if (outcome == Outcome::failed) {
        EXPECT_TRUE(report.met) << "it failed, and no allocation did";
    }
    return outcome;
}

void run(const NamedCall& named, std::uint64_t nth, Report& report) {
    report.stage = "making a runtime";
    World world(named.sleeps);
    world.expect_traffic();
    report.stage = "counting what there is";
    const auto before = world.runtime.things();
    {
        report.stage = "preparing the call";
        const std::unique_ptr<Call> call = named.begin();
        call->prepare(world);
        report.stage = "in the call";
        const Outcome outcome = make_with_failure(*call, world, nth, named.whose, report);
        report.stage = "exchanging messages after the call";
        world.expect_traffic();
        if (outcome == Outcome::failed) {
            report.stage = "making the call again";
            EXPECT_NO_THROW(call->make(world));
        }
        report.stage = "using what the call made";
        EXPECT_NO_THROW(call->use(world));
        report.stage = "ending what the call made";
    }
    report.stage = "exchanging messages at the end";
    world.expect_traffic();
    report.stage = "counting what is left";
    EXPECT_EQ(world.runtime.things(), before);
    report.stage = "closing";
    EXPECT_TRUE(world.a.close());
    EXPECT_TRUE(world.b.close());
    world.expect_all_completed();
    world.memory.deregister();
    world.session.close();
    world.second.close();
    report.stage = "stopping";
    EXPECT_TRUE(world.runtime.stop());
    report.stage = "ending";
}

/// Makes sure that the test's log shows which allocation failed, however this process fails.
void say_where_at_the_end() {
    std::signal(SIGABRT, [](int) {
        FailingAllocation::print_where();
        std::signal(SIGABRT, SIG_DFL);
        (void)std::raise(SIGABRT);
    });
#if defined(__SANITIZE_ADDRESS__)
    __asan_set_death_callback(FailingAllocation::print_where);
#endif
}

/// Number of failures that the test has, including failures from before the fork.
int failures() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
}

[[noreturn]] void child(const NamedCall& named, std::uint64_t nth, Report& report) {
    const int of_others = failures();
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    say_where_at_the_end();
    EXPECT_NO_THROW(run(named, nth, report));
    report.stage = "looking for leaks";
    const bool failed = failures() != of_others || leaks();
    if (failed) {
        FailingAllocation::print_where();
    }
    report.stage = "ended";
    _exit(failed ? 1 : 0);
}

class Children {
public:
    Children() {
        void* shared = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED) {
            throw std::bad_alloc();
        }
        report_ = new (shared) Report;
    }
    ~Children() { ::munmap(report_, sizeof(Report)); }
    Children(const Children&) = delete;
    Children& operator=(const Children&) = delete;

    /// Runs a child in which the nth allocation fails, and returns its report. The test fails if the child crashes,
    /// hangs, or exits with a code other than 0.
    const Report& run(const NamedCall& named, std::uint64_t nth) {
        new (report_) Report;
        const pid_t pid = ::fork();
        if (pid == 0) {
            child(named, nth, *report_);
        }
        const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
        pollfd wait{.fd = ended.get(), .events = POLLIN, .revents = 0};
        const bool hangs = ::poll(&wait, 1, kChildPatienceMs) == 0;
        if (hangs) {
            ::kill(pid, SIGABRT);
        }
        int status = 0;
        ::waitpid(pid, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !hangs)
            << named.name << ", allocation " << nth << ": the process "
            << (hangs                 ? std::string("hung")
                : WIFSIGNALED(status) ? "ended by signal " + std::to_string(WTERMSIG(status))
                                      : "ended with " + std::to_string(WEXITSTATUS(status)))
            << ", " << report_->stage.load();
        return *report_;
    }

private:
    Report* report_;
};

TEST(FailingAllocations, FailOnceEachAsAsked) {
    std::unique_ptr<int> made;
    const auto fails = [&](std::uint64_t nth) {
        const FailingAllocation failing(nth, Allocating::callers);
        for (std::uint64_t i = 1; i <= 3; ++i) {
            try {
                made.reset(new int(1));
            } catch (const std::bad_alloc&) {
                return i;
            }
        }
        return std::uint64_t{0};
    };
    EXPECT_EQ(fails(1), 1u);
    EXPECT_EQ(fails(3), 3u);
    EXPECT_EQ(fails(4), 0u);
    EXPECT_FALSE(FailingAllocation::met());
    EXPECT_EQ(FailingAllocation::counted(), 3u);
    const FailingAllocation failing(1, Allocating::callers);
    EXPECT_EQ(operator new (64, std::align_val_t{64}, std::nothrow), nullptr);
}

#if defined(__SANITIZE_ADDRESS__)
int* volatile left_over = nullptr;

TEST(FailingAllocations, WhatIsLeftOverIsSeen) {
    const pid_t pid = ::fork();
    if (pid == 0) {
        // Leaks many blocks, because a stale pointer in an unused part of the stack sometimes hides one of them.
        for (int i = 0; i < 64; ++i) {
            left_over = new int[1000];
        }
        left_over = nullptr;
        _exit(leaks() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

class Allocations : public ::testing::TestWithParam<const NamedCall*> {};

TEST_P(Allocations, MayFail) {
    const NamedCall& named = *GetParam();
    Children children;
    constexpr std::uint64_t kNone = ~0ull;
    const std::uint64_t counted = children.run(named, kNone).counted;
    ASSERT_FALSE(HasFailure()) << "with all allocations";
    const char* sample = std::getenv("POLLCORE_ALLOCATIONS");
    const std::uint64_t wanted =
        sample == nullptr ? counted : std::min<std::uint64_t>(counted, std::strtoull(sample, nullptr, 10));
    RecordProperty("allocations", static_cast<int>(counted));
    if (const char* one = std::getenv("POLLCORE_ALLOCATION"); one != nullptr) {
        children.run(named, std::strtoull(one, nullptr, 10));
        return;
    }
    for (std::uint64_t i = 0; i < wanted; ++i) {
        // Always includes the last allocation: after its failure the call has the most to undo.
        children.run(named, counted - i * counted / wanted);
    }
}

std::vector<const NamedCall*> pointers() {
    std::vector<const NamedCall*> all;
    for (const NamedCall& named : all_calls()) {
        all.push_back(&named);
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Allocations, ::testing::ValuesIn(pointers()),
                         [](const auto& of) { return std::string(of.param->name); });

}  // namespace
}  // namespace pollcore::testing
