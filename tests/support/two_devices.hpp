// A runtime with one worker and two devices, net0 and net1. Each device has a connected pair of queue pairs. The tests
// that use it remove one of the devices.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "give_way.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore::testing {

class TwoDevices {
protected:
    static constexpr std::chrono::seconds kPatience{120};
    // With these attributes a send waits for its receive for ever.
    static constexpr PathAttributes kWaits{.timeout = 14, .retry_count = 6, .rnr_retry = 7};

    struct Pair {
        QueuePair a;
        QueuePair b;
        MemoryRegion memory;
        [[nodiscard]] std::uint64_t& counter() const { return *reinterpret_cast<std::uint64_t*>(memory.data() + 4096); }
    };

    explicit TwoDevices(const Config& config) : runtime(config), session(runtime.open_session()) {
        first = make("net0");
        second = make("net1");
    }
    ~TwoDevices() = default;

    [[nodiscard]] QueuePairOptions shape(const std::string& device) {
        QueuePairOptions options;
        options.device = device;
        options.shares = {{.session = &session, .send_depth = 64}};
        options.recv_depth = 64;
        options.remote_access = RemoteAccess::all();
        return options;
    }
    Pair make(const std::string& device, const PathAttributes& path = kWaits) {
        Pair pair;
        pair.memory = runtime.allocate(8192, Access::all(), device);
        pair.a = runtime.create_queue_pair(shape(device));
        pair.b = runtime.create_queue_pair(shape(device));
        const QpInfo info = pair.a.info();
        pair.a.connect(pair.b.info(), path);
        pair.b.connect(info, path);
        return pair;
    }

    static WorkRequest write(const Pair& pair, std::uint64_t tag, std::uint8_t flags = kSignaled) {
        return {.tag = tag,
                .sge = {pair.memory.addr(), 8, pair.memory.lkey()},
                .remote_addr = pair.memory.addr() + 4096,
                .rkey = pair.memory.rkey(),
                .qp = pair.a.handle(),
                .opcode = Opcode::rdma_write,
                .flags = flags,
                .num_sge = 1};
    }
    static WorkRequest send(const Pair& pair, std::uint64_t tag, std::uint8_t flags = kSignaled) {
        WorkRequest request = write(pair, tag, flags);
        request.opcode = Opcode::send;
        return request;
    }
    static WorkRequest recv(const Pair& pair, std::uint64_t tag) {
        return {.tag = tag,
                .sge = {pair.memory.addr(), 64, pair.memory.lkey()},
                .qp = pair.b.handle(),
                .opcode = Opcode::recv,
                .num_sge = 1};
    }
    /// A receive for a shared receive queue, into the memory of net0's pair.
    [[nodiscard]] WorkRequest shared_recv(const SharedReceiveQueue& srq, std::uint64_t tag) const {
        return {.tag = tag,
                .sge = {first.memory.addr(), 64, first.memory.lkey()},
                .srq = srq.handle(),
                .opcode = Opcode::srq_recv,
                .num_sge = 1};
    }

    std::vector<Completion> await(std::size_t n) { return await(session, n); }
    static std::vector<Completion> await(Session& from, std::size_t n) {
        std::vector<Completion> all;
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        Completion some[32];
        while (all.size() < n && std::chrono::steady_clock::now() < deadline) {
            const std::size_t got = from.poll({some, std::min<std::size_t>(32, n - all.size())});
            all.insert(all.end(), some, some + got);
            if (got == 0) {
                test::give_way();
            }
        }
        EXPECT_EQ(all.size(), n);
        return all;
    }
    void expect_traffic(const Pair& pair) {
        ASSERT_EQ(session.try_submit(write(pair, 7777)), Refusal::none);
        const auto completions = await(1);
        ASSERT_EQ(completions.size(), 1u);
        EXPECT_EQ(completions[0].tag, 7777u);
        EXPECT_EQ(completions[0].status, Status::success);
    }

    Runtime runtime;
    Session session;
    Pair first;
    Pair second;
};

}  // namespace pollcore::testing
