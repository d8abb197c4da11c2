// The directories of core locks, claims on a core by processes of other users, and holding the cores of a
// configuration.
#include "control/held_core.hpp"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.hpp"
#include "control/daemon_lock.hpp"
#include "other_process.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

namespace fs = std::filesystem;
using test::OtherProcess;

// No machine has so many CPUs, so no runtime outside of the test claims these.
constexpr std::uint32_t kCore = 4000001;
constexpr std::uint32_t kSecondCore = 4000002;

class HeldCoreTest : public testing::Test {
protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "pollcore-held-core-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
        fs::permissions(directory_, static_cast<fs::perms>(0755));
    }
    void TearDown() override { fs::remove_all(directory_); }

    [[nodiscard]] fs::path made(const std::string& name, mode_t mode) const {
        const fs::path path = directory_ / name;
        EXPECT_EQ(::mkdir(path.c_str(), 0700), 0);
        EXPECT_EQ(::chmod(path.c_str(), mode), 0);
        return path;
    }
    [[nodiscard]] Config config() const {
        Config config;
        config.workers.push_back({.name = "w", .core = kCore});
        config.lock_directory = directory_;
        return config;
    }
    /// A directory that a daemon could use for its locks, but that does not exist.
    [[nodiscard]] fs::path no_daemon() const { return directory_ / "none"; }

    // The number and the text of the error that `does` throws; the number is 0 if it throws none.
    template <class Does>
    [[nodiscard]] static std::pair<int, std::string> error_of(Does&& does) {
        try {
            (void)does();
            return {};
        } catch (const Error& error) {
            return {error.code().value(), error.what()};
        }
    }

    fs::path directory_;
};

// ---- Directories ----

TEST_F(HeldCoreTest, ADirectoryThatOthersMayWriteIsRefusedAlsoASticky) {
    for (const mode_t mode : {0777U, 01777U, 0775U, 0722U}) {
        const fs::path path = made("d" + std::to_string(mode), mode);
        const auto [code, text] = error_of([&] { return LockDirectory(path); });
        EXPECT_EQ(code, EPERM) << mode;
        EXPECT_NE(text.find("runtime.lock_directory = \"" + path.native() + "\": other users may write in it"),
                  std::string::npos)
            << text;
    }
    for (const mode_t mode : {0755U, 0700U}) {
        EXPECT_EQ(LockDirectory(made("d" + std::to_string(mode), mode)).path(),
                  directory_ / ("d" + std::to_string(mode)));
    }
}

TEST_F(HeldCoreTest, ADirectoryOfAnotherUserIsRefusedAndRootsIsTaken) {
    if (::geteuid() != 0) {
        // /usr belongs to root, and only root can create a directory of another user
        EXPECT_NO_THROW(LockDirectory(fs::path("/usr")));
        return;
    }
    const fs::path path = made("theirs", 0755);
    ASSERT_EQ(::chown(path.c_str(), test::kOtherUser, test::kOtherUser), 0);
    EXPECT_EQ(error_of([&] { return LockDirectory(path); }).first, EPERM);
    EXPECT_EQ(test::as_other_user([&] { return error_of([&] { return LockDirectory(directory_); }).first; }), 0);
}

TEST_F(HeldCoreTest, ADirectoryThatIsNotThereIsNamed) {
    const auto [code, text] = error_of([&] { return LockDirectory(directory_ / "none"); });
    EXPECT_EQ(code, ENOENT);
    EXPECT_EQ(text,
              "runtime.lock_directory = \"" + (directory_ / "none").native() +
                  "\": this is no directory that exists; create it, or name another one: No such file or directory");
}

TEST_F(HeldCoreTest, TheUsualDirectoryIsTheFirstThatIsOrBecomesTheUsersOwn) {
    const fs::path open_to_all = made("open", 01777);
    const fs::path own = open_to_all / "pollcore";
    const mode_t before = ::umask(077);
    // The first candidate has no parent, the second may be written by other users, and the third is created. In the
    // second round the third exists already.
    const std::vector<fs::path> candidates{directory_ / "none" / "pollcore", open_to_all, own};
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(LockDirectory(candidates).path(), own);
    }
    ::umask(before);
    EXPECT_EQ(fs::status(own).permissions(), static_cast<fs::perms>(0755));
}

TEST_F(HeldCoreTest, ALinkThatSomebodyHasPutThereIsNotFollowed) {
    const fs::path own = made("own", 0700);
    const fs::path link = directory_ / "link";
    fs::create_directory_symlink(own, link);
    const auto [code, text] = error_of([&] { return LockDirectory(std::vector<fs::path>{link}); });
    EXPECT_EQ(code, ENOTDIR) << text;
    EXPECT_NE(text.find(link.native()), std::string::npos) << text;
}

TEST_F(HeldCoreTest, OfCandidatesThatAllBelongToOthersEachIsNamed) {
    const fs::path one = made("one", 0777);
    const fs::path two = made("two", 01777);
    const auto [code, text] = error_of([&] { return LockDirectory(std::vector<fs::path>{one, two}); });
    EXPECT_EQ(code, EPERM);
    for (const fs::path& path : {one, two}) {
        EXPECT_NE(text.find(path.native() + " (other users may write"), std::string::npos) << text;
    }
}

TEST_F(HeldCoreTest, TheDaemonsDirectoryIsTriedFirst) {
    EXPECT_EQ(usual_lock_directories(7),
              (std::vector<fs::path>{"/run/pollcore", "/run/user/7/pollcore", "/tmp/pollcore-7"}));
}

// ---- The daemon's locks ----

TEST_F(HeldCoreTest, TheDaemonsLockIsSeenWhileItIsHeld) {
    EXPECT_FALSE(find_daemon_lock(directory_, kCore));
    {
        const CoreLock lock(LockDirectory(directory_), kCore, "w");
        const auto found = find_daemon_lock(directory_, kCore);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->file, lock.file());
        EXPECT_EQ(found->process, ::getpid());
        EXPECT_EQ(found->user, ::geteuid());
        EXPECT_FALSE(find_daemon_lock(directory_, kSecondCore));
        if (::geteuid() == 0) {
            EXPECT_EQ(test::as_other_user([&] { return find_daemon_lock(directory_, kCore) ? 0 : 1; }), 0);
        }
    }
    EXPECT_FALSE(find_daemon_lock(directory_, kCore)) << "the file alone is no lock";
}

TEST_F(HeldCoreTest, ALockThatAnybodyCouldHaveTakenIsNotTheDaemons) {
    const CoreLock lock(LockDirectory(directory_), kCore, "w");
    fs::permissions(lock.file(), static_cast<fs::perms>(0644));
    EXPECT_FALSE(find_daemon_lock(directory_, kCore));
    fs::permissions(lock.file(), static_cast<fs::perms>(0600));
    fs::permissions(directory_, static_cast<fs::perms>(01777));
    EXPECT_FALSE(find_daemon_lock(directory_, kCore));
}

// ---- Claims ----

TEST_F(HeldCoreTest, AClaimIsSeenByTheOthersOnItsCoreAndEndsWithIt) {
    const CoreClaim own(kCore);
    EXPECT_EQ(own.others(), "");
    {
        const CoreClaim elsewhere(kSecondCore);
        const OtherProcess other([] { new CoreClaim(kCore); });
        const std::string who = own.others();
        EXPECT_TRUE(who.starts_with("process " + std::to_string(other.pid()) + " \"")) << who;
        EXPECT_TRUE(who.ends_with(" of user " + std::to_string(::geteuid()))) << who;
        EXPECT_EQ(own.others(), who) << "to ask leaves nothing that counts";
        EXPECT_EQ(elsewhere.others(), "");
    }
    EXPECT_EQ(own.others(), "");
}

TEST_F(HeldCoreTest, AClaimThatWasEndedIsNotKeptUpByAForkedChild) {
    const CoreClaim own(kCore);
    auto ended = std::make_unique<CoreClaim>(kCore);
    const OtherProcess child([] {});
    EXPECT_NE(own.others(), "");
    ended.reset();
    EXPECT_EQ(own.others(), "");
}

TEST_F(HeldCoreTest, AClaimIsNotEndedByAForkedChildThatDestroysItsCopy) {
    const CoreClaim own(kCore);
    auto claim = std::make_unique<CoreClaim>(kCore);
    {
        const OtherProcess child([&] { claim.reset(); });
    }
    EXPECT_NE(own.others(), "");
}

TEST_F(HeldCoreTest, AThousandClaimsAreNamedInOneShortLine) {
    std::vector<CoreClaim> many;
    for (int i = 0; i < 200; ++i) {
        many.emplace_back(kCore);
    }
    const std::string who = many.back().others();
    EXPECT_TRUE(who.ends_with(" more")) << who;
    EXPECT_LT(who.size(), 400U) << who;
}

TEST_F(HeldCoreTest, WhoListensUnderSuchANameAndAnswersNobodyIsStillCounted) {
    const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const std::string name = "pollcore-core-" + std::to_string(kCore) + "-0123456789abcdef";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    ASSERT_EQ(::listen(listener.get(), 0), 0);
    const UniqueFd fills_the_queue(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fills_the_queue.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(CoreClaim(kCore).others(), "a process that cannot be asked who it is");
}

// ---- A configuration's cores ----

TEST_F(HeldCoreTest, ACoreIsRefusedToASecondRuntimeOfTheUserUnlessItIsShared) {
    const auto held = hold_cores(config(), no_daemon());
    EXPECT_EQ(held.size(), 1U);
    const auto [code, text] = error_of([&] { return hold_cores(config(), no_daemon()); });
    EXPECT_EQ(code, EBUSY);
    EXPECT_NE(text.find("is locked by process " + std::to_string(::getpid())), std::string::npos) << text;
    Config shares = config();
    shares.share_cores = true;
    EXPECT_TRUE(hold_cores(shares, no_daemon()).empty());
}

TEST_F(HeldCoreTest, ARefusalGivesUpTheCoresThatWereTakenBefore) {
    Config two = config();
    two.workers.insert(two.workers.begin(), {.name = "first", .core = kSecondCore});
    const auto held = hold_cores(config(), no_daemon());
    EXPECT_EQ(error_of([&] { return hold_cores(two, no_daemon()); }).first, EBUSY);
    two.workers.pop_back();
    EXPECT_EQ(hold_cores(two, no_daemon()).size(), 1U);
}

TEST_F(HeldCoreTest, ACoreOfTheDaemonIsRefusedToRuntimesThatLockElsewhere) {
    const fs::path of_daemon = made("daemon", 0755);
    const CoreLock daemon(LockDirectory(of_daemon), kCore, "w");
    const auto [code, text] = error_of([&] { return hold_cores(config(), of_daemon); });
    EXPECT_EQ(code, EBUSY);
    EXPECT_NE(text.find(daemon.file().native() + " is locked by process " + std::to_string(::getpid())),
              std::string::npos)
        << text;
    if (::geteuid() == 0) {
        // Another user cannot open the lock file. That user's runtime finds the lock only in the kernel's list of
        // locks.
        const fs::path own = made("own", 0700);
        ASSERT_EQ(::chown(own.c_str(), test::kOtherUser, test::kOtherUser), 0);
        Config theirs = config();
        theirs.lock_directory = own;
        EXPECT_EQ(test::as_other_user([&] { return error_of([&] { return hold_cores(theirs, of_daemon); }).first; }),
                  EBUSY);
    }
}

TEST_F(HeldCoreTest, TheDaemonItselfIsNotKeptFromItsOwnLock) {
    Config of_daemon = config();
    EXPECT_EQ(hold_cores(of_daemon, directory_).size(), 1U);
}

TEST_F(HeldCoreTest, AnothersClaimIsAWarningAndNoRefusal) {
    set_log_level(LogLevel::warning);
    const OtherProcess other([] {
        if (::geteuid() == 0) {
            test::become_other_user();
        }
        new CoreClaim(kCore);
    });
    testing::internal::CaptureStderr();
    const auto held = hold_cores(config(), no_daemon());
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(held.size(), 1U);
    EXPECT_NE(log.find("worker \"w\" is polled by process " + std::to_string(other.pid()) + " \""), std::string::npos)
        << log;
    const uid_t user = ::geteuid() == 0 ? test::kOtherUser : ::geteuid();
    EXPECT_NE(log.find(" of user " + std::to_string(user) + ", too"), std::string::npos) << log;
}

}  // namespace
}  // namespace pollcore
