// A runtime on a software device whose fault plan makes things fail. Each suite runs once with each provider's habits
// (SoftProfile).
#pragma once

#include <infiniband/verbs.h>

#include "device/soft/soft_device.hpp"
#include "fixture.hpp"
#include "give_way.hpp"
#include "planned_error.hpp"

namespace pollcore::testing {

using Kind = SoftFault::Kind;
using Profile = DeviceConfig::Profile;

inline Config config_of(Profile profile) {
    Config config = test_config();
    config.devices[0].profile = profile;
    config.drain_timeout = std::chrono::milliseconds(300);  // short, because some tests wait that long
    return config;
}

class Faults : public Conformance, public ::testing::WithParamInterface<Profile> {
protected:
    Faults() : Conformance(config_of(GetParam())), device(dynamic_cast<SoftDevice&>(runtime.device())) {}

    static WorkRequest on(const QueuePair& qp, WorkRequest request) {
        request.qp = qp.handle();
        return request;
    }
    void reconnect(const QueuePairOptions& options, const PathAttributes& path) {
        a.close();
        b.close();
        connect_pair(options, path);
    }
    void reconnect() { reconnect(shape(), PathAttributes{}); }

    void expect_failed(const Completion& completion, std::uint64_t tag, int status, CompletionOpcode opcode) {
        const auto verbs = static_cast<ibv_wc_status>(status);
        EXPECT_EQ(completion.tag, tag);
        EXPECT_EQ(static_cast<int>(completion.status), status);
        EXPECT_EQ(status_text(completion.status), ibv_wc_status_str(verbs));
        EXPECT_TRUE(status_name(completion.status).starts_with("IBV_WC_"));
        // In a failed completion most fields of the device hold garbage. So the values that the next three lines check
        // come from the runtime itself (I6).
        EXPECT_EQ(completion.opcode, opcode);
        EXPECT_EQ(completion.from_recv_queue(), opcode == CompletionOpcode::recv);
        EXPECT_EQ(completion.byte_len, 0u);
        if (status == IBV_WC_WR_FLUSH_ERR && (completion.flags & kByRuntime) != 0) {
            return;  // the worker already knew of the error, so the device has never seen this request
        }
        EXPECT_EQ(completion.flags & ~kFromRecvQueue, 0);
        EXPECT_EQ(completion.vendor_err & 0xffff, static_cast<std::uint32_t>(status));
        EXPECT_NE(completion.vendor_err, static_cast<std::uint32_t>(status));
    }

    MemoryRegion bindable() {
        Access access = Access::all();
        access.window_bind = true;
        return runtime.allocate(4096, access);
    }
    /// A request on b that binds the window to the first bytes of the region.
    WorkRequest bind(std::uint64_t tag, const MemoryWindow& window, const MemoryRegion& region) const {
        return {.tag = tag,
                .bind = {window.handle(), region.handle(), 64},
                .remote_addr = region.addr(),
                .bind_access = kWindowWrite,
                .rkey = next_rkey(window.rkey()),
                .qp = b.handle(),
                .opcode = Opcode::bind_mw,
                .flags = kSignaled};
    }

    /// Sends a message over a new pair, and expects that it arrives.
    void expect_new_pairs_work() {
        QueuePair was_a = std::move(a);
        QueuePair was_b = std::move(b);
        a = QueuePair();
        b = QueuePair();
        connect_pair();
        submit(recv(900, 64));
        submit(send(901, 32));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success) << completion.tag;
            EXPECT_GE(completion.tag, 900u);
        }
    }

    /// Waits for something that the control thread does without being asked.
    template <class Condition>
    void eventually(const char* what, Condition condition) {
        const auto deadline = std::chrono::steady_clock::now() + kPatience;
        while (!condition()) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what;
            test::give_way();
        }
    }

    SoftDevice& device;
};

/// For INSTANTIATE_TEST_SUITE_P: a suite runs once with the habits of each provider.
inline constexpr Profile kProfiles[] = {Profile::standard, Profile::rxe, Profile::mlx5};
inline std::string name_of(const ::testing::TestParamInfo<Profile>& info) {
    static constexpr const char* kNames[] = {"standard", "rxe", "mlx5"};
    return kNames[static_cast<int>(info.param)];
}

}  // namespace pollcore::testing
