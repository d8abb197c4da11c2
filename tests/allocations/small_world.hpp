// A runtime with objects for the tested calls, and traffic that shows whether the objects work.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "control/runtime_state.hpp"
#include "give_way.hpp"
#include "pollcore/runtime.hpp"
#include "test_cpus.hpp"

namespace pollcore::testing {

/// Long, because a busy machine may be slow. Only a test that hangs reaches it.
inline constexpr std::chrono::seconds kPatience{60};

inline Config world_config(bool sleeps) {
    Config config;
    config.share_cores = true;  // other tests run at the same time
    config.memory.hugepages = MemoryConfig::Hugepages::never;
    config.memory.size = 32u << 20;
    config.devices.emplace_back().name = "a_device_by_a_long_name";
    WorkerConfig worker;
    worker.name = "a_worker_by_a_long_name";
    worker.core = test::last_cpu();
    worker.idle = sleeps ? IdlePolicy::event : IdlePolicy::yield;
    worker.cq_depth = 256;
    config.workers.push_back(worker);
    config.qps_max = 32;
    config.drain_timeout = std::chrono::milliseconds(2000);
    config.log_level = LogLevel::error;
    return config;
}

/// A runtime in this process whose state the tests can read.
class OpenRuntime : public Runtime {
public:
    using Runtime::Runtime;

    /// Number of objects of each kind, by the names of their counters in ControlCounters.
    [[nodiscard]] std::map<std::string, std::uint64_t> things() const {
        auto& state = dynamic_cast<RuntimeState&>(control());
        state.call([&] { state.count_things_here(); });
        const ControlCounters& counters = state.counters;
        return {{"sessions", counters.sessions.value()},
                {"queue pairs", counters.queue_pairs.value()},
                {"shared receive queues", counters.shared_receive_queues.value()},
                {"receive pools", counters.receive_pools.value()},
                {"memory regions", counters.memory_regions.value()},
                {"protection domains", counters.protection_domains.value()}};
    }
};

class World {
public:
    static constexpr std::uint32_t kDepth = 8;
    static constexpr std::uint32_t kLength = 64;

    explicit World(bool sleeps)
        : runtime(world_config(sleeps)),
          session(open()),
          second(open()),
          memory(runtime.allocate(16 * 1024, Access::all())) {
        for (std::size_t i = 0; i < memory.size(); ++i) {
            memory.data()[i] = static_cast<std::byte>(i * 31 + (i >> 8));
        }
        a = runtime.create_queue_pair(shape(session));
        b = runtime.create_queue_pair(shape(session));
        connect(a, b);
    }

    [[nodiscard]] Session open() {
        return runtime.open_session({.worker = {}, .submission_slots = 64, .completion_slots = 64, .pool_buffers = 64});
    }
    [[nodiscard]] QueuePairOptions shape() { return shape(second); }
    [[nodiscard]] static QueuePairOptions shape(Session& by) {
        QueuePairOptions options;
        options.name = "a queue pair by a long name";
        options.shares = {{.session = &by, .send_depth = kDepth}};
        options.recv_depth = kDepth;
        options.sges_max = 2;
        options.inline_max = 32;
        options.remote_access = RemoteAccess::all();
        return options;
    }
    static void connect(QueuePair& one, QueuePair& other) {
        const QpInfo info = one.info();
        one.connect(other.info());
        other.connect(info);
    }

    [[nodiscard]] Sge at(std::size_t offset) const { return {memory.addr() + offset, kLength, memory.lkey()}; }
    [[nodiscard]] WorkRequest send(const QueuePair& from, std::uint64_t tag) const {
        return {
            .tag = tag, .sge = at(0), .qp = from.handle(), .opcode = Opcode::send, .flags = kSignaled, .num_sge = 1};
    }
    [[nodiscard]] WorkRequest recv(const QueuePair& to, std::uint64_t tag) const {
        return {.tag = tag, .sge = at(4096), .qp = to.handle(), .opcode = Opcode::recv, .num_sge = 1};
    }

    static void submit(Session& to, const WorkRequest& request) {
        Refusal refusal = Refusal::none;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        do {  // a slot is free only after the worker has released it
            refusal = to.try_submit(request);
            test::give_way();
        } while (retryable(refusal) && std::chrono::steady_clock::now() < deadline);
        EXPECT_EQ(refusal, Refusal::none) << refusal_name(refusal) << " of tag " << request.tag;
    }
    /// Waits for `n` completions of these sessions, and expects that they come.
    static std::vector<Completion> await(std::initializer_list<Session*> sessions, std::size_t n) {
        std::vector<Completion> all;
        Completion one;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (all.size() < n && std::chrono::steady_clock::now() < deadline) {
            for (Session* from : sessions) {
                if (from->poll({&one, 1}) == 1) {
                    all.push_back(one);
                }
            }
            test::give_way();
        }
        EXPECT_EQ(all.size(), n) << "completions";
        return all;
    }
    static void expect_each_once(const std::vector<Completion>& all, std::uint64_t first, std::uint64_t behind) {
        std::map<std::uint64_t, int> seen;
        for (const Completion& completion : all) {
            EXPECT_TRUE(completion.ok()) << completion.tag << ": " << status_name(completion.status);
            ++seen[completion.tag];
        }
        for (std::uint64_t tag = first; tag < behind; ++tag) {
            EXPECT_EQ(seen[tag], 1) << "of tag " << tag;
        }
    }
    /// Sends as many messages as the queues hold, in both directions, over a connected pair of one session. Expects
    /// each request to complete once, with success.
    void exchange(Session& by, const QueuePair& one, const QueuePair& other) {
        const std::uint64_t first = next_tag;
        for (std::uint32_t i = 0; i < kDepth; ++i) {
            submit(by, recv(one, next_tag++));
            submit(by, recv(other, next_tag++));
        }
        for (std::uint32_t i = 0; i < kDepth; ++i) {
            submit(by, send(one, next_tag++));
            submit(by, send(other, next_tag++));
        }
        expect_each_once(await({&by}, next_tag - first), first, next_tag);
    }
    /// Exchanges messages over the queue pairs that are older than the tested call.
    void expect_traffic() {
        exchange(session, a, b);
        Completion late;
        EXPECT_EQ(session.poll({&late, 1}), 0u) << "a completion of no request";
    }

    /// Expects every submitted request to have completed.
    void expect_all_completed() {
        for (Session* one : {&session, &second}) {
            Completion left;
            while (one->poll({&left, 1}) == 1) {
            }
            EXPECT_EQ(one->figures().in_flight(), 0u);
        }
    }

    OpenRuntime runtime;
    Session session;  // owns the queue pairs that are older than the tested call
    Session second;   // used by the tested calls
    MemoryRegion memory;
    QueuePair a;
    QueuePair b;
    std::uint64_t next_tag = 1;
};

}  // namespace pollcore::testing
