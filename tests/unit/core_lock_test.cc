// Core locks: between threads of one process, between processes, and after the death of an owner.
#include "control/core_lock.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "other_process.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

namespace fs = std::filesystem;
using test::OtherProcess;

class CoreLockTest : public testing::Test {
protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "pollcore-core-lock-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
    }
    void TearDown() override { fs::remove_all(directory_); }

    [[nodiscard]] LockDirectory locks() const { return LockDirectory(directory_); }
    [[nodiscard]] fs::path file(int core) const {
        return directory_ / ("pollcore-core-" + std::to_string(core) + ".lock");
    }
    [[nodiscard]] std::string content(int core) const {
        std::ifstream in(file(core));
        return {std::istreambuf_iterator<char>(in), {}};
    }
    // Tries to lock core 1. Returns the text of the error, or "" if the lock was taken.
    [[nodiscard]] std::string refusal(int* code = nullptr) const { return refusal_in(directory_, code); }
    [[nodiscard]] static std::string refusal_in(const fs::path& directory, int* code = nullptr) {
        try {
            const CoreLock lock(LockDirectory(directory), 1, "second");
            return {};
        } catch (const Error& error) {
            if (code != nullptr) {
                *code = error.code().value();
            }
            return error.what();
        }
    }
    [[nodiscard]] std::string owned_by(pid_t pid) const {
        return "locking core 1 for worker \"second\": " + file(1).native() + " is locked by process " +
               std::to_string(pid) + " (\"" + program_invocation_short_name + "\", worker \"first\")";
    }

    fs::path directory_;
};

TEST_F(CoreLockTest, names_its_owner_in_the_file_while_it_is_held) {
    {
        const CoreLock lock(locks(), 1, "first");
        EXPECT_EQ(lock.file(), file(1));
        EXPECT_EQ(content(1), std::to_string(::getpid()) + " " + program_invocation_short_name + " first\n");
    }
    EXPECT_TRUE(fs::exists(file(1)));
    EXPECT_EQ(content(1), "");
}

TEST_F(CoreLockTest, is_one_per_core) {
    const CoreLock one(locks(), 1, "first");
    EXPECT_NO_THROW(CoreLock(locks(), 2, "second"));
}

TEST_F(CoreLockTest, excludes_a_second_runtime_of_the_same_process) {
    const CoreLock lock(locks(), 1, "first");
    int code = 0;
    EXPECT_EQ(refusal(&code),
              owned_by(::getpid()) +
                  "; stop it, choose another core, or share this one (runtime.share_cores): Device or resource busy");
    EXPECT_EQ(code, EBUSY);
}

TEST_F(CoreLockTest, excludes_another_process_and_names_it) {
    const OtherProcess other([this] { new CoreLock(locks(), 1, "first"); });
    int code = 0;
    EXPECT_EQ(refusal(&code),
              owned_by(other.pid()) +
                  "; stop it, choose another core, or share this one (runtime.share_cores): Device or resource busy");
    EXPECT_EQ(code, EBUSY);
    // The refused attempt has not overwritten the owner's name in the file.
    EXPECT_EQ(content(1).substr(0, content(1).find(' ')), std::to_string(other.pid()));
}

TEST_F(CoreLockTest, can_be_taken_again_after_it_was_given_up) {
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(refusal(), "");
    }
}

TEST_F(CoreLockTest, ends_with_the_process_that_held_it) {
    OtherProcess other([this] { new CoreLock(locks(), 1, "first"); });
    EXPECT_NE(refusal(), "");
    other.kill();
    // The dead owner's name is still in the file. The next owner replaces it.
    EXPECT_EQ(content(1), std::to_string(std::stoi(content(1))) + " " + program_invocation_short_name + " first\n");
    const CoreLock lock(locks(), 1, "third");
    EXPECT_EQ(content(1), std::to_string(::getpid()) + " " + program_invocation_short_name + " third\n");
}

TEST_F(CoreLockTest, is_given_up_although_a_forked_child_has_the_descriptor) {
    auto lock = std::make_unique<CoreLock>(locks(), 1, "first");
    const OtherProcess child([] {});
    EXPECT_NE(refusal(), "");
    lock.reset();
    EXPECT_EQ(refusal(), "");
}

TEST_F(CoreLockTest, is_not_given_up_by_a_forked_child_that_destroys_its_copy) {
    auto lock = std::make_unique<CoreLock>(locks(), 1, "first");
    {
        const OtherProcess child([&] { lock.reset(); });
    }
    EXPECT_EQ(refusal(),
              owned_by(::getpid()) +
                  "; stop it, choose another core, or share this one (runtime.share_cores): Device or resource busy");
}

TEST_F(CoreLockTest, says_so_when_a_child_of_a_dead_owner_keeps_it) {
    // The owner forks a child, which inherits the lock, and dies. The child lives until the end of the test.
    int stay[2];
    ASSERT_EQ(::pipe(stay), 0);
    pid_t owner_pid = 0;
    {
        OtherProcess owner([&] {
            new CoreLock(locks(), 1, "first");
            if (::fork() == 0) {
                ::close(stay[1]);
                char byte = 0;
                (void)!::read(stay[0], &byte, 1);
                ::_exit(0);
            }
        });
        owner_pid = owner.pid();
        owner.kill();
    }
    EXPECT_EQ(refusal(), owned_by(owner_pid) +
                             ", which cannot be seen from here: either it is in another container, or it is gone and a "
                             "child of it lives on with the lock ('fuser " +
                             file(1).native() +
                             "' finds it); stop that, choose another core, or share this one (runtime.share_cores): "
                             "Device or resource busy");
    ::close(stay[0]);
    ::close(stay[1]);
}

TEST_F(CoreLockTest, does_not_believe_a_malformed_owner) {
    const CoreLock lock(locks(), 1, "first");
    for (const char* text : {"", "x", "12", "12 a", "-5 a b", "0 a b", "1 a\x1b[31m b", "99999999999999999999 a b"}) {
        std::ofstream(file(1), std::ios::trunc) << text;
        EXPECT_EQ(refusal(), "locking core 1 for worker \"second\": " + file(1).native() +
                                 " is locked by a process that has not said its name ('fuser " + file(1).native() +
                                 "' finds it); stop it, choose another core, or share this one (runtime.share_cores): "
                                 "Device or resource busy")
            << text;
    }
}

TEST_F(CoreLockTest, has_a_file_that_nobody_else_can_open_and_so_lock) {
    const mode_t before = ::umask(0);
    EXPECT_EQ(refusal(), "");
    ::umask(before);
    EXPECT_EQ(fs::status(file(1)).permissions(), static_cast<fs::perms>(0600));
    if (::geteuid() != 0) {
        return;  // only root can run code as another user
    }
    fs::permissions(directory_, static_cast<fs::perms>(0755));
    EXPECT_EQ(test::as_other_user([this] { return ::open(file(1).c_str(), O_RDONLY) < 0 && errno == EACCES ? 0 : 1; }),
              0);
    EXPECT_EQ(test::as_other_user([this] { return ::unlink(file(1).c_str()) != 0 && errno == EACCES ? 0 : 1; }), 0);
}

TEST_F(CoreLockTest, refuses_a_file_that_others_may_lock) {
    EXPECT_EQ(refusal(), "");
    fs::permissions(file(1), static_cast<fs::perms>(0666));
    int code = 0;
    EXPECT_EQ(refusal(&code), "locking core 1 for worker \"second\": " + file(1).native() + " is a file of user " +
                                  std::to_string(::geteuid()) + " with mode 0666, which others than user " +
                                  std::to_string(::geteuid()) + " may lock; remove it: Operation not permitted");
    EXPECT_EQ(code, EPERM);
    if (::geteuid() != 0) {
        return;  // only root can give a file to another user
    }
    fs::permissions(file(1), static_cast<fs::perms>(0600));
    ASSERT_EQ(::chown(file(1).c_str(), test::kOtherUser, test::kOtherUser), 0);
    code = 0;
    (void)refusal(&code);
    EXPECT_EQ(code, EPERM);
}

TEST_F(CoreLockTest, says_what_to_do_in_a_directory_that_cannot_be_written) {
    // Another process makes the attempt, because root first has to become a user without the permission.
    fs::permissions(directory_, static_cast<fs::perms>(0555));
    const fs::path report = testing::TempDir() + "pollcore-core-lock-report-" + std::to_string(::getpid());
    std::ofstream(report).close();
    fs::permissions(report, static_cast<fs::perms>(0666));
    const uid_t user = ::geteuid() == 0 ? test::kOtherUser : ::geteuid();
    {
        const OtherProcess other([&] {
            if (::geteuid() == 0) {
                test::become_other_user();
            }
            std::ofstream(report) << refusal();
        });
    }
    std::ifstream in(report);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(text, "locking core 1 for worker \"second\": user " + std::to_string(user) + " may not write " +
                        file(1).native() +
                        "; allow it, or name another directory in runtime.lock_directory: Permission denied");
    fs::remove(report);
    fs::permissions(directory_, static_cast<fs::perms>(0755));
}

TEST_F(CoreLockTest, follows_no_link_and_empties_nobody_elses_file) {
    const fs::path victim = directory_ / "victim";
    std::ofstream(victim) << "precious";
    int code = 0;

    fs::create_symlink(victim, file(1));
    (void)refusal(&code);
    EXPECT_EQ(code, ELOOP);
    fs::remove(file(1));

    fs::create_hard_link(victim, file(1));
    (void)refusal(&code);
    EXPECT_EQ(code, EINVAL);
    fs::remove(file(1));

    ASSERT_EQ(::mkfifo(file(1).c_str(), 0666), 0);
    (void)refusal(&code);
    EXPECT_EQ(code, EINVAL);

    std::ifstream in(victim);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "precious");
}

TEST_F(CoreLockTest, moves) {
    CoreLock one(locks(), 1, "first");
    CoreLock moved(std::move(one));
    EXPECT_NE(refusal(), "");
    CoreLock two(locks(), 2, "other");
    two = std::move(moved);
    EXPECT_EQ(content(2), "");
    EXPECT_NE(refusal(), "");
    EXPECT_NO_THROW(CoreLock(locks(), 2, "again"));
}

// Several processes take and leave a core many times. While a process has the core, it writes its number into a word
// that only the owner may write. Two owners at the same time would see each other's numbers.
class CoreLockContest : public CoreLockTest {
protected:
    void run(const std::function<void()>& before_leaving) {
        constexpr int kProcesses = 4;
        constexpr int kRounds = 150;
        constexpr std::size_t kSize = 2 * sizeof(std::atomic<int>);
        void* const memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(memory, MAP_FAILED);
        auto* const owner = new (memory) std::atomic<int>[2];
        std::atomic<int>* const taken = owner + 1;
        std::vector<pid_t> pids;
        for (int process = 1; process <= kProcesses; ++process) {
            const pid_t pid = ::fork();
            ASSERT_GE(pid, 0);
            if (pid == 0) {
                ::_exit(contend(process, kRounds, *owner, *taken, before_leaving));
            }
            pids.push_back(pid);
        }
        for (const pid_t pid : pids) {
            int status = 0;
            ASSERT_EQ(::waitpid(pid, &status, 0), pid);
            EXPECT_EQ(status, 0);
        }
        EXPECT_EQ(taken->load(), kProcesses * kRounds);
        ::munmap(memory, kSize);
    }

private:
    int contend(int process, int rounds, std::atomic<int>& owner, std::atomic<int>& taken,
                const std::function<void()>& before_leaving) const {
        while (rounds > 0) {
            try {
                const CoreLock lock(locks(), 1, "w");
                if (owner.exchange(process) != 0) {
                    return 1;
                }
                taken.fetch_add(1);
                ::sched_yield();  // gives a second owner time to appear, if there is one
                if (owner.exchange(0) != process) {
                    return 2;
                }
                --rounds;
                before_leaving();
            } catch (const Error& error) {
                // EAGAIN means that the lock file was removed during each attempt.
                if (error.code() != std::errc::device_or_resource_busy &&
                    error.code() != std::errc::resource_unavailable_try_again) {
                    return 3;
                }
                ::sched_yield();  // lets the owner run, because there may be fewer cores than processes
            }
        }
        return 0;
    }
};

TEST_F(CoreLockContest, has_one_owner_at_a_time) {
    run([] {});
}

TEST_F(CoreLockContest, has_one_owner_at_a_time_though_the_file_is_removed_again_and_again) {
    run([this] { ::unlink(file(1).c_str()); });
}

}  // namespace
}  // namespace pollcore
