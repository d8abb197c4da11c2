// The server's socket, and who may attach there.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "attach/attach_fixture.hpp"
#include "base/unique_fd.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using test::AttachTest;
using test::code_of;

TEST_F(AttachTest, OfOneSocketThereIsOneServer) {
    EXPECT_EQ(code_of([&] { AttachServer second(runtime, attach_config()); }), EADDRINUSE);
    EXPECT_EQ(code_of([] { Attachment nowhere({.path = "/tmp/pollcore-nobody-is-here"}); }), ENOENT);
    EXPECT_EQ(code_of([] { Attachment nowhere({.path = std::string(200, 'x')}); }), ENAMETOOLONG);
}

TEST_F(AttachTest, WhatIsLeftOfAServerThatWasKilledIsReplaced) {
    AttachConfig config = attach_config();
    config.path += "-left";
    {
        sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
        std::strncpy(address.sun_path, config.path.c_str(), sizeof(address.sun_path) - 1);
        const UniqueFd left(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
        ASSERT_EQ(::bind(left.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    }
    AttachServer again(runtime, config);
    EXPECT_TRUE(Attachment({.path = config.path}).valid());
    AttachConfig file = config;
    file.path += "-file";
    std::ofstream(file.path) << "no socket";
    EXPECT_EQ(code_of([&] { AttachServer never(runtime, file); }), EEXIST);
    EXPECT_TRUE(std::filesystem::exists(file.path));
    std::filesystem::remove(file.path);
}

TEST_F(AttachTest, IsForTheUsersAndGroupsOfTheConfiguration) {
    AttachConfig config = attach_config();
    config.path += "-users";
    const std::string other = std::to_string(::getuid() + 1);
    config.users = {other};
    config.groups = {std::to_string(::getgid() + 100'000)};
    {
        AttachServer others(runtime, config);
        EXPECT_EQ(code_of([&] { Attachment refused({.path = config.path}); }), EACCES);
        EXPECT_EQ(others.counts().refused, 1u);
        EXPECT_EQ(others.counts().attached, 0u);
    }
    config.users = {other, std::to_string(::getuid())};
    {
        AttachServer ours(runtime, config);
        EXPECT_TRUE(Attachment({.path = config.path}).valid());
    }
    config.users = {other};
    config.groups = {std::to_string(::getgid())};
    AttachServer by_group(runtime, config);
    EXPECT_TRUE(Attachment({.path = config.path}).valid());
    config.path += "-unknown";
    config.users = {"no-such-user-here"};
    EXPECT_EQ(code_of([&] { AttachServer never(runtime, config); }), EINVAL);
}

TEST_F(AttachTest, HasTheModeOfTheConfiguration) {
    AttachConfig config = attach_config();
    config.path += "-mode";
    config.mode = 0620;
    AttachServer server_of_mode(runtime, config);
    struct stat status {};
    ASSERT_EQ(::stat(config.path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0620u);
}

TEST_F(AttachTest, WhoMayAttachCanChangeAndEndsThoseWhoMayNoMore) {
    Attachment daemon = attach();
    AttachConfig config = attach_config();
    config.users = {"no-such-user-here"};
    EXPECT_EQ(code_of([&] { server.configure(config); }), EINVAL);
    EXPECT_NO_THROW((void)daemon.open_session()) << "nothing has changed";
    config.users = {std::to_string(::getuid() + 1)};
    server.configure(config);
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!daemon.lost() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(daemon.lost());
    EXPECT_EQ(code_of([&] { (void)attach(); }), EACCES);
    config.users.clear();
    server.configure(config);
    EXPECT_NO_THROW((void)attach());
}

}  // namespace
}  // namespace pollcore
