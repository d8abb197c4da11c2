// The control socket: who may connect, and what clients do to it that stop, flood or send garbage.
#include "pollcored/control_socket.hpp"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/control_wire.hpp"
#include "system/daemon_process.hpp"

namespace pollcore::daemon {
namespace {

using namespace std::chrono_literals;

constexpr const char* kStatus = R"({"protocol": 1, "command": "status"})";
constexpr const char* kVersion = R"({"protocol": 1, "command": "version"})";

class ControlSocketTest : public testing::Test {
protected:
    void start(const std::string& group = "") {
        ControlConfig config;
        config.path = path_;
        config.group = group;
        std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
        socket_ = std::make_unique<ControlSocket>(
            config, ControlSocket::Ways{
                        .carry_out = [this](const ControlCommand& command, const ControlCaller& caller,
                                            const std::shared_ptr<ControlAnswer>& answer) -> std::chrono::milliseconds {
                            const std::lock_guard lock(mutex_);
                            callers_ += caller.text() + ";";
                            if (command.what == ControlCommand::What::version) {
                                unanswered_ = answer;
                                return wait_;
                            }
                            answer->done({{"size", std::string(size_, 'x')}});
                            return 1h;
                        },
                        .why_late = [](const ControlCommand&, ControlAnswer::Given) { return "it is late"; },
                        .begin_thread = [] {}});
        socket_->start();
    }

    [[nodiscard]] UniqueFd connected(int type = SOCK_SEQPACKET) const {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, path_.c_str());
        UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
        if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
            return {};
        }
        return fd;
    }
    static void say(const UniqueFd& fd, const std::string& bytes) {
        (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    // Everything that comes until the daemon hangs up.
    static std::string heard(const UniqueFd& fd) {
        std::string text;
        for (;;) {
            char bytes[control_wire::kPacketMax];
            const ssize_t got = ::recv(fd.get(), bytes, sizeof(bytes), 0);
            if (got > 0) {
                text.append(bytes, static_cast<std::size_t>(got));
            } else if (got == 0 || errno != ECONNRESET) {
                return text;
            }
        }
    }
    [[nodiscard]] std::string answer_to(const std::string& bytes) const {
        const UniqueFd fd = connected();
        say(fd, bytes);
        return heard(fd);
    }
    // What a child that takes the steps of `become` hears. The child ends after `meanwhile`.
    [[nodiscard]] std::string answer_to_another(
        const std::function<bool()>& become, const std::function<void()>& meanwhile = [] {}) const {
        int ends[2];
        int stays[2];
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        EXPECT_EQ(::pipe2(stays, O_CLOEXEC), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            const std::string text = become() ? answer_to(kStatus) : "cannot become another user";
            (void)!::write(ends[1], text.data(), text.size());
            ::close(ends[1]);
            ::close(stays[1]);
            (void)!::read(stays[0], ends, 1);
            ::_exit(0);
        }
        ::close(ends[1]);
        char bytes[4096];
        const ssize_t got = ::read(ends[0], bytes, sizeof(bytes));
        ::close(ends[0]);
        meanwhile();
        ::close(stays[1]);
        ::close(stays[0]);
        EXPECT_EQ(::waitpid(child, nullptr, 0), child);
        return {bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
    }
    static std::function<bool()> user(uid_t uid, std::vector<gid_t> groups) {
        return [uid, groups] {
            return ::setgroups(groups.size(), groups.data()) == 0 && ::setresgid(uid, uid, uid) == 0 &&
                   ::setresuid(uid, uid, uid) == 0;
        };
    }

    test::TemporaryDirectory directory_;
    std::filesystem::path path_ = directory_.path() / "control.sock";
    std::atomic<std::size_t> size_{1};
    std::chrono::milliseconds wait_ = 1h;
    std::mutex mutex_;
    std::string callers_;
    std::shared_ptr<ControlAnswer> unanswered_;
    std::unique_ptr<ControlSocket> socket_;
};

TEST_F(ControlSocketTest, AnswersACommandAndHangsUp) {
    start();
    EXPECT_EQ(answer_to(kStatus), R"({"protocol":1,"result":{"size":"x"}})");
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(callers_, "uid " + std::to_string(::getuid()) + " (pid " + std::to_string(::getpid()) + ");");
}

TEST_F(ControlSocketTest, AnswersInAsManyPacketsAsItTakes) {
    size_ = 3'000'000;
    start();
    EXPECT_EQ(answer_to(kStatus), R"({"protocol":1,"result":{"size":")" + std::string(size_, 'x') + "\"}}");
}

TEST_F(ControlSocketTest, RefusesWhatIsNoCommand) {
    start();
    EXPECT_NE(answer_to("garbage \x01\xff").find("bad_command"), std::string::npos);
    EXPECT_NE(answer_to(R"({"protocol": 1, "comm)").find("this is no JSON"), std::string::npos);
    EXPECT_NE(answer_to(std::string(100'000, '{')).find("at most 4096 bytes"), std::string::npos);
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(callers_, "");
}

TEST_F(ControlSocketTest, IsNoStreamSocket) {
    start();
    EXPECT_FALSE(connected(SOCK_STREAM).valid());
}

TEST_F(ControlSocketTest, GoesOnBesideClientsThatStopInTheMiddle) {
    ASSERT_EQ(::geteuid(), 0u) << "root may have all connections";
    start();
    size_ = 3'000'000;
    const UniqueFd reads_nothing = connected();
    say(reads_nothing, kStatus);
    (void)answer_to(kStatus);  // by now the other answer is made, too
    size_ = 1;
    // In the end all places are taken, and the next one is refused, until the silent ones are hung up on.
    std::vector<UniqueFd> silent;
    do {
        silent.push_back(connected());
    } while (answer_to(kStatus).find("busy") == std::string::npos);
    for (const UniqueFd& each : silent) {
        EXPECT_EQ(heard(each).find("result"), std::string::npos);
    }
    EXPECT_EQ(answer_to(kStatus), R"({"protocol":1,"result":{"size":"x"}})");
}

TEST_F(ControlSocketTest, EndsBesideClientsThatStopInTheMiddle) {
    start();
    const UniqueFd silent = connected();
    const UniqueFd waits = connected();
    say(waits, kVersion);
    (void)answer_to(kStatus);  // by now the others are known
    socket_->stop();
    EXPECT_NE(heard(silent).find("the daemon is stopping"), std::string::npos);
    EXPECT_NE(heard(waits).find("the daemon is stopping"), std::string::npos);
    ASSERT_NE(unanswered_, nullptr);
    EXPECT_FALSE(unanswered_->begin()) << "it must not be carried out any more";
}

TEST_F(ControlSocketTest, ATimeLimitEndsTheWaitForAnAnswer) {
    wait_ = 1ms;
    start();
    EXPECT_EQ(answer_to(kVersion), R"({"protocol":1,"error":{"code":"refused","text":"it is late"}})");
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(unanswered_->begin());
}

TEST_F(ControlSocketTest, AThousandConnectionsHarmNothing) {
    start();
    std::atomic<int> answered{0};
    std::vector<std::future<void>> floods;
    for (int i = 0; i < 4; ++i) {
        floods.push_back(std::async(std::launch::async, [&] {
            for (int n = 0; n < 250; ++n) {
                const UniqueFd fd = connected();
                if (fd.valid() && n % 2 == 0) {
                    say(fd, n % 4 == 0 ? kStatus : "garbage");
                    answered += !heard(fd).empty();
                }
            }
        }));
    }
    floods.clear();
    EXPECT_GT(answered.load(), 0);
    std::string answer;
    do {
        answer = answer_to(kStatus);
    } while (answer.find("busy") != std::string::npos);
    EXPECT_EQ(answer, R"({"protocol":1,"result":{"size":"x"}})");
}

TEST_F(ControlSocketTest, DescriptorsThatComeWithACommandAreClosed) {
    start();
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd fd = connected();
    alignas(cmsghdr) char beside[CMSG_SPACE(sizeof(int))]{};
    iovec part{const_cast<char*>(kStatus), std::strlen(kStatus)};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = beside;
    message.msg_controllen = sizeof(beside);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &ends[1], sizeof(int));
    if (::sendmsg(fd.get(), &message, 0) < 0) {
        EXPECT_EQ(errno, EPERM) << "from Linux 6.16 on, the kernel refuses them";
        say(fd, kStatus);
    }
    ::close(ends[1]);
    EXPECT_NE(heard(fd).find("result"), std::string::npos);
    char nothing = 0;
    EXPECT_EQ(::read(ends[0], &nothing, 1), 0) << "nobody has the other end any more";
    ::close(ends[0]);
}

TEST_F(ControlSocketTest, OnlyRootTheDaemonsUserAndTheGroupMayGiveCommands) {
    ASSERT_EQ(::geteuid(), 0u) << "needs other users";
    constexpr uid_t kStranger = 65533;
    constexpr gid_t kGroup = 54321;
    start(std::to_string(kGroup));
    struct stat file {};
    ASSERT_EQ(::stat(path_.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0660u);
    EXPECT_EQ(file.st_gid, kGroup);
    const std::string done = R"({"protocol":1,"result":{"size":"x"}})";
    EXPECT_EQ(answer_to_another(user(kStranger, {kGroup})), done) << "a member of the group";
    EXPECT_EQ(answer_to_another(user(kStranger, {})), "") << "the file's mode keeps him out";
    // The file's mode is not all: somebody may have changed it.
    std::filesystem::permissions(path_, std::filesystem::perms(0666));
    const std::string refused = answer_to_another(user(kStranger, {}));
    EXPECT_NE(refused.find("not_permitted"), std::string::npos) << refused;
    EXPECT_EQ(answer_to(kStatus), done);
}

TEST_F(ControlSocketTest, WithoutAGroupOnlyTheUserMayOpenTheFile) {
    start();
    struct stat file {};
    ASSERT_EQ(::stat(path_.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST_F(ControlSocketTest, PlacesForRootStayFree) {
    ASSERT_EQ(::geteuid(), 0u) << "needs other users";
    constexpr gid_t kGroup = 54321;
    start(std::to_string(kGroup));
    const auto take_all = [&] {
        if (!user(65533, {kGroup})()) {
            return false;
        }
        do {
            new UniqueFd(connected());  // until the child ends
        } while (answer_to(kStatus).find("busy") == std::string::npos);
        return true;
    };
    const std::string refused =
        answer_to_another(take_all, [&] { EXPECT_EQ(answer_to(kStatus), R"({"protocol":1,"result":{"size":"x"}})"); });
    EXPECT_NE(refused.find("busy"), std::string::npos) << refused;
}

TEST_F(ControlSocketTest, ComesBackIfSomebodyRemovesItsFile) {
    start();
    std::filesystem::remove(path_);
    while (!connected().valid()) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(answer_to(kStatus), R"({"protocol":1,"result":{"size":"x"}})");
}

TEST_F(ControlSocketTest, ItsThreadCountsAsWaitingBetweenCommands) {
    start();
    (void)answer_to(kStatus);
    while (socket_->health().state != ThreadHealth::State::waiting) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(socket_->health().name, "pollcore-admin");
    socket_->stop();
    EXPECT_EQ(socket_->health().state, ThreadHealth::State::not_running);
}

}  // namespace
}  // namespace pollcore::daemon
