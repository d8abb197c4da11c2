// DPDK's telemetry socket in a program that embeds runtimes: its threads outlive each runtime.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

namespace fs = std::filesystem;

Config config_called(const std::string& name, bool telemetry) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    DeviceConfig device;
    device.name = "soft0";
    config.devices = {device};
    WorkerConfig worker;
    worker.name = name + "-worker";
    worker.idle = IdlePolicy::yield;
    config.workers = {worker};
    config.log_level = LogLevel::error;
    config.statistics.segment = StatisticsConfig::Segment::on;
    config.statistics.name = name;
    config.statistics.telemetry = telemetry;
    return config;
}

class Client {
public:
    explicit Client(const fs::path& path) : fd_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
        path.native().copy(address.sun_path, sizeof(address.sun_path) - 1);
        EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << path;
        (void)hear();
    }
    std::string ask(const std::string& command) const {
        EXPECT_EQ(::send(fd_.get(), command.data(), command.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(command.size()));
        return hear();
    }

private:
    [[nodiscard]] std::string hear() const {
        std::string answer(1 << 16, '\0');
        answer.resize(
            static_cast<std::size_t>(std::max<ssize_t>(::recv(fd_.get(), answer.data(), answer.size(), 0), 0)));
        return answer;
    }
    UniqueFd fd_;
};

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Whether the answer has `part`, at the latest when the control thread has written its rows.
bool answers(const Client& client, const std::string& command, const std::string& part) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);  // ends a test that hangs
    while (std::chrono::steady_clock::now() < end) {
        if (has(client.ask(command), part)) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << client.ask(command);
    return false;
}

// One test, because a process sets EAL up once.
TEST(Telemetry, AnswersForEachRuntimeThatThereIsAndSaysWhenThereIsNone) {
    std::string made = "/tmp/pollcore-telemetry-XXXXXX";
    ASSERT_NE(::mkdtemp(made.data()), nullptr);
    const fs::path directory = made;
    ASSERT_EQ(::setenv("RUNTIME_DIRECTORY", directory.c_str(), 1), 0);
    std::optional<Runtime> first(std::in_place, config_called("first", true));
    const fs::path path = directory / "dpdk" / "pollcore" / "dpdk_telemetry.v2";
    const Client client(path);
    EXPECT_TRUE(answers(client, "/pollcore/workers", "\"first-worker\""));
    {
        const Runtime second(config_called("second", false));
        EXPECT_TRUE(answers(client, "/pollcore/workers,0,1", "\"second-worker\""));
        EXPECT_TRUE(answers(client, "/pollcore/workers,0,0", "\"first-worker\""));
        EXPECT_TRUE(answers(client, "/pollcore/worker,second-worker,1", "\"steps\":"));
        EXPECT_TRUE(has(client.ask("/pollcore/runtime,1"), "\"runtimes\":2"));
        EXPECT_TRUE(has(client.ask("/pollcore/runtime,2"), "INDEX is too large"));
    }
    EXPECT_TRUE(has(client.ask("/pollcore/runtime"), "\"runtimes\":1"));
    first.reset();
    for (const char* const command :
         {"/pollcore/runtime", "/pollcore/workers", "/pollcore/worker,first-worker", "/pollcore/sessions,5"}) {
        EXPECT_TRUE(has(client.ask(command), "there is no runtime")) << client.ask(command);
    }
    first.emplace(config_called("third", true));
    EXPECT_TRUE(has(client.ask("/pollcore/runtime"), "\"name\":\"third\"")) << client.ask("/pollcore/runtime");
    EXPECT_FALSE(has(client.ask("/"), "\"/pollcore/runtime\",\"/pollcore/runtime\"")) << "a command is there twice";
    first.reset();
    fs::remove_all(directory);
}

}  // namespace
}  // namespace pollcore
