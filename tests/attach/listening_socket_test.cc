// Tests how the listening socket treats the file at its path, before the socket is made and afterwards.
#include "attach/listening_socket.hpp"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "attach/socket_file.hpp"
#include "other_process.hpp"
#include "pollcore/error.hpp"
#include "system/daemon_process.hpp"

namespace pollcore {
namespace {

namespace fs = std::filesystem;

class ListeningSocketTest : public testing::Test {
protected:
    [[nodiscard]] SocketPlace place(const std::string& owner = "") const {
        AttachConfig config;
        config.path = path_;
        config.owner = owner;
        return SocketPlace(config);
    }
    // Makes the socket. Returns the number and text of the error, or 0 and an empty text if there is no error.
    [[nodiscard]] std::pair<int, std::string> refusal(const std::string& owner = "") const {
        try {
            const ListeningSocket made(place(owner));
            return {};
        } catch (const Error& error) {
            return {error.code().value(), error.what()};
        }
    }
    // Returns a socket that is bound to the path.
    [[nodiscard]] UniqueFd bound(int type) const {
        UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
        const sockaddr_un address = socket_address(path_);
        EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
        return socket;
    }
    [[nodiscard]] bool can_be_connected_to(int type) const {
        const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const sockaddr_un address = socket_address(path_);
        return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    }
    [[nodiscard]] struct stat now_there() const {
        struct stat status {};
        EXPECT_EQ(::lstat(path_.c_str(), &status), 0);
        return status;
    }
    // Checks that the file is still there, and that chown and chmod have changed nothing.
    void expect_untouched(const struct stat& before) const {
        const struct stat now = now_there();
        EXPECT_EQ(SocketFile::of(now), SocketFile::of(before));
        EXPECT_EQ(now.st_uid, before.st_uid);
        EXPECT_EQ(now.st_mode, before.st_mode);
        EXPECT_EQ(now.st_ctim.tv_sec, before.st_ctim.tv_sec);
        EXPECT_EQ(now.st_ctim.tv_nsec, before.st_ctim.tv_nsec);
    }

    const test::TemporaryDirectory directory_;
    const fs::path path_ = directory_.path() / "socket";
};

TEST_F(ListeningSocketTest, ALivingSocketOfAnyTypeStaysUntouched) {
    for (const int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) {
        const UniqueFd theirs = bound(type);
        if (type != SOCK_DGRAM) {
            ASSERT_EQ(::listen(theirs.get(), 4), 0);
        }
        const struct stat before = now_there();
        const auto [code, text] = refusal();
        EXPECT_EQ(code, EADDRINUSE) << type;
        EXPECT_NE(text.find("another process has its socket there"), std::string::npos) << text;
        expect_untouched(before);
        EXPECT_TRUE(can_be_connected_to(type));
        EXPECT_EQ(::unlink(path_.c_str()), 0);
    }
}

TEST_F(ListeningSocketTest, AnotherDaemonBetweenItsBindAndItsListenIsAliveToo) {
    const UniqueFd theirs = bound(SOCK_SEQPACKET);
    const struct stat before = now_there();
    EXPECT_EQ(refusal().first, EADDRINUSE);
    expect_untouched(before);
    EXPECT_EQ(::listen(theirs.get(), 4), 0);
    EXPECT_TRUE(can_be_connected_to(SOCK_SEQPACKET));
}

TEST_F(ListeningSocketTest, OneWhoseQueueIsFullIsAliveToo) {
    const UniqueFd theirs = bound(SOCK_SEQPACKET);
    ASSERT_EQ(::listen(theirs.get(), 0), 0);
    while (can_be_connected_to(SOCK_SEQPACKET)) {
    }
    EXPECT_EQ(errno, EAGAIN);
    const struct stat before = now_there();
    EXPECT_EQ(refusal().first, EADDRINUSE);
    expect_untouched(before);
}

TEST_F(ListeningSocketTest, ASocketOfAnotherUserStaysUntouchedDeadOrAlive) {
    if (::geteuid() != 0) {
        EXPECT_EQ(refusal().first, 0);  // only root can change the owner of a file
        return;
    }
    UniqueFd theirs = bound(SOCK_SEQPACKET);
    ASSERT_EQ(::listen(theirs.get(), 4), 0);
    ASSERT_EQ(::chown(path_.c_str(), test::kOtherUser, test::kOtherUser), 0);
    ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
    const struct stat before = now_there();
    EXPECT_EQ(refusal().first, EADDRINUSE);
    expect_untouched(before);
    EXPECT_TRUE(can_be_connected_to(SOCK_SEQPACKET));
    theirs.reset();
    const auto [code, text] = refusal();
    EXPECT_EQ(code, EADDRINUSE);
    EXPECT_NE(text.find("user " + std::to_string(test::kOtherUser) + "'s"), std::string::npos) << text;
    expect_untouched(before);
}

TEST_F(ListeningSocketTest, WhatCannotBeConnectedToIsNotTakenForDead) {
    UniqueFd left = bound(SOCK_SEQPACKET);
    left.reset();
    ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
    const auto code_for_whom_permissions_count = [this] { return refusal().first; };
    if (::geteuid() != 0) {
        EXPECT_EQ(code_for_whom_permissions_count(), EADDRINUSE);
        return;
    }
    ASSERT_EQ(::chown(directory_.path().c_str(), test::kOtherUser, test::kOtherUser), 0);
    ASSERT_EQ(::chown(path_.c_str(), test::kOtherUser, test::kOtherUser), 0);
    const struct stat before = now_there();
    EXPECT_EQ(test::as_other_user(code_for_whom_permissions_count), EADDRINUSE);
    expect_untouched(before);
}

TEST_F(ListeningSocketTest, WhatIsNoSocketStays) {
    std::ofstream(path_) << "precious";
    EXPECT_EQ(refusal().first, EEXIST);
    EXPECT_EQ(test::read_file(path_), "precious");
}

TEST_F(ListeningSocketTest, ADeadSocketOfTheSameUserIsReplaced) {
    { const UniqueFd left = bound(SOCK_SEQPACKET); }
    const ListeningSocket made(place());
    EXPECT_TRUE(can_be_connected_to(SOCK_SEQPACKET));
    EXPECT_TRUE(made.accept().valid());
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), fs::directory_iterator()), 1)
        << "nothing is left beside it";
}

TEST_F(ListeningSocketTest, ADeadSocketThatWasGivenToTheConfiguredOwnerIsReplaced) {
    if (::geteuid() != 0) {
        EXPECT_EQ(refusal(std::to_string(::geteuid())).first, 0);  // only root can change the owner of a file
        return;
    }
    { const UniqueFd left = bound(SOCK_SEQPACKET); }
    ASSERT_EQ(::chown(path_.c_str(), test::kOtherUser, test::kOtherUser), 0);
    EXPECT_EQ(refusal(std::to_string(test::kOtherUser)).second, "");
}

TEST_F(ListeningSocketTest, TellsWhatStandsAtItsPath) {
    {
        const ListeningSocket made(place());
        EXPECT_EQ(made.standing(), ListeningSocket::Standing::own);
        fs::rename(path_, directory_.path() / "elsewhere");
        EXPECT_EQ(made.standing(), ListeningSocket::Standing::nothing);
        std::ofstream(path_) << "precious";
        EXPECT_EQ(made.standing(), ListeningSocket::Standing::something_else);
    }
    EXPECT_EQ(test::read_file(path_), "precious") << "it removes no file but its own";
}

TEST_F(ListeningSocketTest, GoesWithItsFile) {
    { const ListeningSocket made(place()); }
    EXPECT_FALSE(fs::exists(path_));
}

TEST_F(ListeningSocketTest, RemovingOneFileLeavesAnotherOfItsNameWhereItIs) {
    const UniqueFd theirs = bound(SOCK_SEQPACKET);
    ASSERT_EQ(::listen(theirs.get(), 4), 0);
    const struct stat before = now_there();
    EXPECT_FALSE(remove_only(path_, {.device = before.st_dev, .inode = before.st_ino + 1}));
    EXPECT_EQ(SocketFile::of(now_there()), SocketFile::of(before));
    EXPECT_TRUE(can_be_connected_to(SOCK_SEQPACKET));
    EXPECT_TRUE(remove_only(path_, SocketFile::of(before)));
    EXPECT_FALSE(fs::exists(path_));
    EXPECT_TRUE(remove_only(path_, SocketFile::of(before))) << "it is gone already";
}

}  // namespace
}  // namespace pollcore
