// The opcodes that a queue pair of each type accepts. Both sides of the submission ring check the opcode of a request:
// the session and the worker.
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

constexpr std::array kTypes{QpType::rc, QpType::uc, QpType::ud};

/// The specification's table, written out. (ibv_post_send(3) also lists send with invalidate for UC, but no UC packet
/// could carry the key.)
std::set<Opcode> allowed(QpType type) {
    switch (type) {
        case QpType::rc:
            return {Opcode::rdma_write,           Opcode::rdma_write_with_imm, Opcode::send,
                    Opcode::send_with_imm,        Opcode::rdma_read,           Opcode::atomic_cmp_and_swp,
                    Opcode::atomic_fetch_and_add, Opcode::local_inv,           Opcode::bind_mw,
                    Opcode::send_with_inv};
        case QpType::uc:
            return {Opcode::rdma_write,    Opcode::rdma_write_with_imm, Opcode::send,
                    Opcode::send_with_imm, Opcode::local_inv,           Opcode::bind_mw};
        case QpType::ud: return {Opcode::send, Opcode::send_with_imm};
    }
    return {};
}

TEST(OpcodeMask, HoldsWhatTheSpecificationAllowsForTheTypeAndNoOtherByte) {
    for (const QpType type : kTypes) {
        for (unsigned value = 0; value < 256; ++value) {
            const auto opcode = static_cast<Opcode>(value);
            EXPECT_EQ(allows(opcodes_of(type), opcode), allowed(type).contains(opcode))
                << "type " << static_cast<int>(type) << ", opcode " << value;
        }
    }
}

TEST(OpcodeMask, TravelsBesideTheLargestDepths) {
    const QpLimitsWord all{.send_depth = kQueueDepthMax, .recv_depth = kQueueDepthMax, .opcodes = 0xffff};
    const auto back = QpLimitsWord::unpack(all.pack());
    EXPECT_EQ(back.send_depth, kQueueDepthMax);
    EXPECT_EQ(back.recv_depth, kQueueDepthMax);
    EXPECT_EQ(back.opcodes, 0xffff);
    const auto none = QpLimitsWord::unpack(QpLimitsWord{.send_depth = 1, .recv_depth = 2, .opcodes = 0}.pack());
    EXPECT_EQ(none.send_depth, 1u);
    EXPECT_EQ(none.recv_depth, 2u);
    EXPECT_EQ(none.opcodes, 0u);
}

/// The queue pairs accept only the opcodes of the type under test. The device's own QPs are RC, which can carry out all
/// of these opcodes.
class QpTypes : public WorkerFixture, public ::testing::WithParamInterface<QpType> {
protected:
    QpTypes() { make({.opcodes = opcodes_of(GetParam())}); }
    [[nodiscard]] WorkRequest request_of(Opcode opcode) const {
        WorkRequest any = request(opcode, 1);
        if (is_local(opcode)) {
            any.num_sge = 0;
        }
        return any;
    }
};

TEST_P(QpTypes, RefuseAtSubmissionWhatTheTypeDoesNotHave) {
    for (unsigned value = 0; value < 256; ++value) {
        const auto opcode = static_cast<Opcode>(value);
        if (is_recv(opcode)) {
            continue;
        }
        const Refusal wanted = allowed(GetParam()).contains(opcode) ? Refusal::none : Refusal::bad_opcode;
        EXPECT_EQ(try_submit(request_of(opcode)), wanted) << "opcode " << value;
    }
    EXPECT_EQ(world->session().figures().accepted, allowed(GetParam()).size());
}

// A client that bypasses its library writes straight into the shared ring.
TEST_P(QpTypes, RefuseAtTheWorkerWhatTheSessionLetPass) {
    RingProducer<WorkRequest> raw = world->raw();
    std::uint64_t refused = 0;
    for (unsigned value = 0; value < 256; ++value) {
        const auto opcode = static_cast<Opcode>(value);
        if (is_recv(opcode) || opcode == Opcode::release || allowed(GetParam()).contains(opcode)) {
            continue;
        }
        ASSERT_TRUE(raw.try_push(request_of(opcode)));
        world->step();
        const auto completions = world->poll();
        ASSERT_EQ(completions.size(), 1u) << "opcode " << value;
        EXPECT_EQ(completions[0].status, Status::request_refused) << "opcode " << value;
        EXPECT_TRUE(completions[0].flags & kByRuntime);
        ++refused;
    }
    // The 3 opcodes are two receives and one that is no work request.
    EXPECT_EQ(refused, 256 - 3 - allowed(GetParam()).size());
    EXPECT_EQ(world->worker.counters().refused_requests.value(), refused);
    EXPECT_EQ(world->worker.counters().sends.value(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Each, QpTypes, ::testing::ValuesIn(kTypes));

}  // namespace
}  // namespace pollcore::testing
