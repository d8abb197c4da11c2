// A runtime with a server in the same process, and clients that attach there.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "control/platform.hpp"
#include "give_way.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/error.hpp"
#include "pollcore/runtime.hpp"
#include "session/layout.hpp"
#include "test_cpus.hpp"

namespace pollcore::test {

[[nodiscard]] inline Config runtime_config(IdlePolicy idle = IdlePolicy::yield) {
    Config config;
    config.share_cores = true;  // other tests may run at the same time
    config.devices.push_back({.name = "net0", .profile = DeviceConfig::Profile::mlx5});
    config.workers.push_back({.name = "w0", .core = last_cpu(), .idle = idle});
    config.qps_max = 64;
    config.log_level = LogLevel::error;
    return config;
}

class AttachTest : public ::testing::Test {
protected:
    explicit AttachTest(IdlePolicy idle = IdlePolicy::yield) : AttachTest(host_platform(), idle) {}
    explicit AttachTest(std::unique_ptr<Platform> platform, IdlePolicy idle = IdlePolicy::yield)
        : runtime(runtime_config(idle), std::move(platform)), server(runtime, attach_config()) {}

    static AttachConfig attach_config() {
        AttachConfig config;
        config.path = std::filesystem::temp_directory_path() / ("pollcore-attach-" + std::to_string(::getpid()));
        return config;
    }
    [[nodiscard]] static Attachment attach() {
        return Attachment(patient({.path = attach_config().path, .name = "test"}));
    }

    static std::uint64_t rings_of(const SessionOptions& options) {
        return SessionLayout{runtime_config().qps_max,
                             options.submission_slots,
                             options.completion_slots,
                             options.wide_completions,
                             false,
                             options.pool_buffers}
            .bytes();
    }

    static std::vector<Completion> await(Session& session, std::size_t n) {
        std::vector<Completion> all;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (all.size() < n && std::chrono::steady_clock::now() < deadline) {
            Completion one;
            if (session.poll({&one, 1}) == 1) {
                all.push_back(one);
            } else {
                give_way();
            }
        }
        EXPECT_EQ(all.size(), n);
        return all;
    }

    Runtime runtime;
    AttachServer server;
};

/// Two queue pairs that are connected to each other.
struct Pair {
    Pair(Context& daemon, Session& session)
        : Pair(daemon, {.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()}) {}
    Pair(Context& daemon, const QueuePairOptions& options)
        : a(daemon.create_queue_pair(options)), b(daemon.create_queue_pair(options)) {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    [[nodiscard]] WorkRequest write(const MemoryRegion& memory) const {
        return {.tag = 7,
                .sge = {memory.addr(), 64, memory.lkey()},
                .remote_addr = memory.addr() + 4096,
                .rkey = memory.rkey(),
                .qp = a.handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }
    Refusal write(Session& session, const MemoryRegion& memory) const { return session.try_submit(write(memory)); }
    QueuePair a;
    QueuePair b;
};

/// Returns the errno value of the Error that `call` throws, or 0.
[[nodiscard]] inline int code_of(const std::function<void()>& call) {
    try {
        call();
        return 0;
    } catch (const Error& error) {
        return error.code().value();
    }
}

}  // namespace pollcore::test
