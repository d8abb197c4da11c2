// Attaching to a runtime of the same process: what the two sides say to each other. The suites that have a daemon of its own are
// tests/conformance (POLLCORE_TEST_ATTACH) and tests/attach/kill_test.cc.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

std::uint32_t last_cpu() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    std::uint32_t last = 0;
    for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        last = CPU_ISSET(cpu, &set) ? cpu : last;
    }
    return last;
}

Config runtime_config(IdlePolicy idle = IdlePolicy::yield) {
    Config config;
    config.devices.push_back({.name = "net0", .profile = DeviceConfig::Profile::mlx5});
    config.workers.push_back({.name = "w0", .core = last_cpu(), .idle = idle});
    config.qps_max = 64;
    config.log_level = LogLevel::error;
    return config;
}

class AttachTest : public ::testing::Test {
protected:
    explicit AttachTest(IdlePolicy idle = IdlePolicy::yield) : runtime(runtime_config(idle)), server(runtime, attach_config()) {}

    static AttachConfig attach_config() {
        AttachConfig config;
        config.path = std::filesystem::temp_directory_path() / ("pollcore-attach-" + std::to_string(::getpid()));
        return config;
    }
    [[nodiscard]] static Attachment attach() { return Attachment({.path = attach_config().path, .name = "test"}); }

    static std::vector<Completion> await(Session& session, std::size_t n) {
        std::vector<Completion> all;
        const auto deadline = std::chrono::steady_clock::now() + 10s;
        while (all.size() < n && std::chrono::steady_clock::now() < deadline) {
            Completion one;
            if (session.poll({&one, 1}) == 1) {
                all.push_back(one);
            } else {
                sched_yield();
            }
        }
        EXPECT_EQ(all.size(), n);
        return all;
    }

    Runtime runtime;
    AttachServer server;
};

TEST_F(AttachTest, AnAttachedProcessWritesAndReadsAsAnEmbeddedOne) {
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion memory = daemon.allocate(8192);
    QueuePair a = daemon.create_queue_pair({.shares = {{.session = &session}}});
    QueuePair b = daemon.create_queue_pair({.shares = {{.session = &session}}});
    const QpInfo info_a = a.info();
    a.connect(b.info());
    b.connect(info_a);
    memory.data()[0] = std::byte{42};
    ASSERT_EQ(session.try_submit({.tag = 7,
                                  .sge = {memory.addr(), 64, memory.lkey()},
                                  .remote_addr = memory.addr() + 4096,
                                  .rkey = memory.rkey(),
                                  .qp = a.handle(),
                                  .opcode = Opcode::rdma_write,
                                  .flags = kSignaled,
                                  .num_sge = 1}),
              Refusal::none);
    const std::vector<Completion> done = await(session, 1);
    EXPECT_EQ(done.at(0).status, Status::success);
    EXPECT_EQ(done.at(0).tag, 7u);
    EXPECT_EQ(memory.data()[4096], std::byte{42});
    EXPECT_EQ(server.counts().now, 1u);
}

TEST_F(AttachTest, WhatDetachesLeavesNothing) {
    {
        Attachment daemon = attach();
        Session session = daemon.open_session();
        MemoryRegion memory = daemon.allocate(8192);
        QueuePair a = daemon.create_queue_pair({.shares = {{.session = &session}}});
        EXPECT_TRUE(daemon.stop());
        EXPECT_THROW((void)daemon.open_session(), Error);
    }
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    while (server.counts().now != 0 && std::chrono::steady_clock::now() < deadline) {
        sched_yield();
    }
    EXPECT_EQ(server.counts().now, 0u);
    EXPECT_EQ(server.counts().detached, 1u);
    EXPECT_EQ(server.counts().died, 0u);
}

}  // namespace
}  // namespace pollcore
