// Descriptors that other threads close. Most tests pass the writing end of a pipe, and the reading end shows whether
// the writing end was closed.
#include "base/foreign_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"

namespace pollcore {
namespace {

constexpr int kPatienceMs = 30'000;

struct Pipe {
    UniqueFd reading;
    UniqueFd writing;
    Pipe() {
        int ends[2];
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        reading.reset(ends[0]);
        writing.reset(ends[1]);
    }
    /// Returns true if all copies of the writing end have been closed.
    [[nodiscard]] bool ends() const {
        pollfd hung_up{.fd = reading.get(), .events = POLLIN, .revents = 0};
        return ::poll(&hung_up, 1, kPatienceMs) == 1 && (hung_up.revents & POLLHUP) != 0;
    }
};

struct Sockets {
    ForeignFd own;
    UniqueFd other;
    Sockets() {
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        own = ForeignFd(ends[0], Unread::taken);
        other.reset(ends[1]);
    }
    void pass(UniqueFd fd, std::size_t bytes) const {
        char byte = 1;
        iovec part{&byte, bytes};
        alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* beside = CMSG_FIRSTHDR(&message);
        beside->cmsg_level = SOL_SOCKET;
        beside->cmsg_type = SCM_RIGHTS;
        beside->cmsg_len = CMSG_LEN(sizeof(int));
        const int number = fd.get();
        std::memcpy(CMSG_DATA(beside), &number, sizeof(number));
        ASSERT_EQ(::sendmsg(other.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
    }
};

TEST(ForeignFdTest, IsClosedWhenItGoes) {
    Pipe pipe;
    { const ForeignFd fd(pipe.writing.release()); }
    EXPECT_TRUE(pipe.ends());
}

TEST(ForeignFdTest, ManyAtATimeAreAllClosed) {
    std::array<Pipe, 100> pipes;
    for (Pipe& pipe : pipes) {
        const ForeignFd fd(pipe.writing.release());
    }
    for (const Pipe& pipe : pipes) {
        EXPECT_TRUE(pipe.ends());
    }
}

TEST(ForeignFdTest, WhoTakesManyInWaitsForThoseThatCloseThem) {
    for (int i = 0; i < 2000; ++i) {
        Pipe pipe;
        const ForeignFd fd(pipe.writing.release());
    }
    let_disposal_catch_up(0, std::chrono::milliseconds(kPatienceMs));
    Pipe pipe;
    { const ForeignFd fd(pipe.writing.release()); }
    EXPECT_TRUE(pipe.ends());
}

TEST(Disposal, AJobThatDoesNotReturnHoldsUpItsOwnersOthersAndNobodyElses) {
    std::promise<void> let_go;
    std::promise<void> of_another;
    std::promise<void> second;
    dispose(1, [held = let_go.get_future().share()] { held.wait(); });
    dispose(1, [&] { second.set_value(); });
    dispose(2, [&] { of_another.set_value(); });
    of_another.get_future().wait();
    std::future<void> waits = second.get_future();
    EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    let_go.set_value();
    waits.wait();
}

// An empty message looks like the end of the connection, but it may still carry descriptors.
TEST(ForeignFdTest, WhatStandsInASocketsQueueIsClosedWithItEmptyMessagesToo) {
    Pipe empty;
    Pipe behind;
    Sockets sockets;
    sockets.pass(std::move(empty.writing), 0);
    sockets.pass(std::move(behind.writing), 1);
    sockets.own.reset();
    EXPECT_TRUE(empty.ends());
    EXPECT_TRUE(behind.ends());
}

TEST(ForeignFdTest, ASocketIsShutDownAtOnce) {
    Sockets sockets;
    sockets.own.reset();
    EXPECT_EQ(::send(sockets.other.get(), "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace pollcore
