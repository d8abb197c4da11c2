// Tests what the daemon learns about a process that connects.
#include "attach/credentials.hpp"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"

namespace pollcore {
namespace {

constexpr uid_t kNobody = 65534;
constexpr std::uint32_t kNetRaw = 1U << CAP_NET_RAW;

// Reduces the capabilities below 32 of the calling thread to those in `permitted` and `effective`. Returns whether the
// kernel has accepted the change.
bool keep_capabilities(std::uint32_t permitted, std::uint32_t effective) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    if (::syscall(SYS_capget, &header, data) != 0) {
        return false;
    }
    data[0].permitted &= permitted;
    data[0].effective = data[0].permitted & effective;
    return ::syscall(SYS_capset, &header, data) == 0;
}

bool become_nobody() {
    return ::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
           ::setresuid(kNobody, kNobody, kNobody) == 0;
}

// Becomes the user nobody, but keeps CAP_NET_RAW.
bool become_nobody_with_net_raw() {
    return ::prctl(PR_SET_KEEPCAPS, 1) == 0 && become_nobody() && keep_capabilities(kNetRaw, kNetRaw);
}

class PeerTest : public ::testing::Test {
protected:
    using Step = std::function<bool()>;

    PeerTest() {
        char name[] = "/tmp/pollcore-peer-XXXXXX";
        directory_ = ::mkdtemp(name);
        std::filesystem::permissions(directory_, std::filesystem::perms(0755));
        sockaddr_un address = address_of_socket();
        listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0)
            << std::strerror(errno);
        std::filesystem::permissions(address.sun_path, std::filesystem::perms(0777));
        EXPECT_EQ(::listen(listener_.get(), 1), 0) << std::strerror(errno);
    }
    ~PeerTest() override {
        if (child_ > 0) {
            (void)::kill(child_, SIGKILL);
            (void)::waitpid(child_, nullptr, 0);
        }
        std::filesystem::remove_all(directory_);
    }

    // Forks a process, which takes the step `before`, connects, and takes the step `after`. `after` may call execve(2).
    // Returns what peer_of() says about the process.
    [[nodiscard]] Peer peer_that(
        const Step& before, const Step& after = [] { return true; }) {
        int steps[2];
        EXPECT_EQ(::pipe2(steps, O_CLOEXEC), 0);
        child_ = ::fork();
        if (child_ == 0) {
            sockaddr_un address = address_of_socket();
            const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
            if (!before() || ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
                !after()) {
                (void)!::write(steps[1], "x", 1);
            }
            ::close(steps[1]);
            ::pause();
            ::_exit(1);
        }
        ::close(steps[1]);
        char failed = 0;
        const ssize_t told = ::read(steps[0], &failed, 1);
        ::close(steps[0]);
        if (told != 0) {  // a step has failed, so the process may never connect
            throw std::runtime_error("a step of the process failed");
        }
        const UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        return peer_of(socket.get());
    }

    [[nodiscard]] sockaddr_un address_of_socket() const {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, (directory_ / "socket").c_str());
        return address;
    }

    std::filesystem::path directory_;
    UniqueFd listener_;
    pid_t child_ = -1;
};

TEST_F(PeerTest, OfRootHasNetRaw) {
    EXPECT_TRUE(peer_that([] { return true; }).net_raw);
}

TEST_F(PeerTest, WhoseCapabilityIsNotEffectiveHasNoNetRaw) {
    EXPECT_FALSE(peer_that([] { return keep_capabilities(~0U, ~kNetRaw); }).net_raw);
}

TEST_F(PeerTest, OfAnotherUserHasNoNetRawByItself) {
    const Peer peer = peer_that(become_nobody);
    EXPECT_EQ(peer.uid, kNobody);
    EXPECT_FALSE(peer.net_raw);
}

TEST_F(PeerTest, OfAnotherUserHasTheNetRawThatItWasGiven) {
    EXPECT_TRUE(peer_that([] { return become_nobody_with_net_raw() && ::prctl(PR_SET_DUMPABLE, 1) == 0; }).net_raw);
}

TEST_F(PeerTest, WithAllCapabilitiesOfAnotherUserNamespaceHasNoNetRaw) {
    EXPECT_FALSE(peer_that([] { return ::unshare(CLONE_NEWUSER) == 0; }).net_raw);
}

// A process could connect and then run a program such as ping(8), which gets the capability from its file and inherits
// the socket.
TEST_F(PeerTest, ThatGotItFromAFileAfterItHadConnectedHasNoNetRaw) {
    const std::filesystem::path file = directory_ / "sleep";
    std::filesystem::copy_file("/bin/sleep", file);
    vfs_cap_data capability{};
    capability.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE;
    capability.data[0].permitted = kNetRaw;
    ASSERT_EQ(::setxattr(file.c_str(), "security.capability", &capability, XATTR_CAPS_SZ_2, 0), 0)
        << std::strerror(errno);
    const Peer peer = peer_that(become_nobody, [&] {
        ::execl(file.c_str(), "sleep", "1000", nullptr);
        return false;
    });
    EXPECT_FALSE(peer.net_raw);
}

}  // namespace
}  // namespace pollcore
