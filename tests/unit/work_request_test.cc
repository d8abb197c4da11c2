// The static members of WorkRequest set the fields that the verbs have for each opcode, and no others.
#include "pollcore/work_request.hpp"

#include <array>
#include <cstring>

#include <gtest/gtest.h>

#include "pollcore/memory.hpp"

namespace pollcore {
namespace {

constexpr QpHandle kQp{3, 5};
constexpr Sge kSge{.addr = 0x1000, .length = 64, .lkey = 17};
constexpr RemoteMemory kRemote{.addr = 0x2000, .rkey = 23};

// A signaled request with one SGE, filled by hand.
WorkRequest by_hand(Opcode opcode) {
    WorkRequest request;
    request.sge = kSge;
    request.qp = kQp;
    request.opcode = opcode;
    request.flags = kSignaled;
    request.num_sge = 1;
    return request;
}

WorkRequest by_hand(Opcode opcode, RemoteMemory remote) {
    WorkRequest request = by_hand(opcode);
    request.remote_addr = remote.addr;
    request.rkey = remote.rkey;
    return request;
}

void expect_same(const WorkRequest& made, const WorkRequest& wanted) {
    EXPECT_EQ(std::memcmp(&made, &wanted, sizeof(made)), 0) << "opcode " << static_cast<int>(wanted.opcode);
}

TEST(WorkRequestBuilders, MakeSendsAndReceives) {
    expect_same(WorkRequest::send(kQp, kSge), by_hand(Opcode::send));
    WorkRequest wanted = by_hand(Opcode::send_with_imm);
    wanted.imm_data = 99;
    expect_same(WorkRequest::send_with_imm(kQp, kSge, 99), wanted);
    wanted = by_hand(Opcode::send_with_inv);
    wanted.invalidate_rkey = 98;
    expect_same(WorkRequest::send_with_inv(kQp, kSge, 98), wanted);
    wanted = by_hand(Opcode::recv);
    wanted.flags = 0;
    expect_same(WorkRequest::recv(kQp, kSge), wanted);
    wanted.opcode = Opcode::srq_recv;
    wanted.srq = SrqHandle{7, 9};
    expect_same(WorkRequest::srq_recv({7, 9}, kSge), wanted);
}

TEST(WorkRequestBuilders, MakeRdmaAndAtomics) {
    expect_same(WorkRequest::rdma_write(kQp, kSge, kRemote), by_hand(Opcode::rdma_write, kRemote));
    expect_same(WorkRequest::rdma_read(kQp, kSge, kRemote), by_hand(Opcode::rdma_read, kRemote));
    WorkRequest wanted = by_hand(Opcode::rdma_write_with_imm, kRemote);
    wanted.imm_data = 99;
    expect_same(WorkRequest::rdma_write_with_imm(kQp, kSge, kRemote, 99), wanted);
    wanted = by_hand(Opcode::atomic_fetch_and_add, kRemote);
    wanted.compare_add = 5;
    expect_same(WorkRequest::atomic_fetch_and_add(kQp, kSge, kRemote, 5), wanted);
    wanted = by_hand(Opcode::atomic_cmp_and_swp, kRemote);
    wanted.compare_add = 5;
    wanted.swap = 6;
    expect_same(WorkRequest::atomic_cmp_and_swp(kQp, kSge, kRemote, 5, 6), wanted);
}

TEST(WorkRequestBuilders, MakeRequestsThatChangeKeys) {
    WorkRequest wanted = by_hand(Opcode::local_inv);
    wanted.sge = {};
    wanted.num_sge = 0;
    wanted.invalidate_rkey = 98;
    expect_same(WorkRequest::local_inv(kQp, 98), wanted);

    const WindowBind bind({1, 2}, {3, 4}, 4096);
    wanted = by_hand(Opcode::bind_mw, kRemote);
    wanted.num_sge = 0;
    wanted.bind = bind;
    wanted.bind_access = kWindowWrite;
    expect_same(WorkRequest::bind_mw(kQp, bind, kRemote.addr, kWindowWrite, kRemote.rkey), wanted);
}

TEST(WorkRequestBuilders, AreChangedByTheirOtherMembers) {
    WorkRequest wanted = by_hand(Opcode::send);
    wanted.tag = 4;
    wanted.flags = kFence | kSolicited;
    wanted.rkey = 23;
    expect_same(WorkRequest::send(kQp, kSge).with_tag(4).with_flags(kFence | kSolicited).unsignaled().with_rkey(23),
                wanted);

    wanted = by_hand(Opcode::send);
    wanted.ud = {AhHandle{7, 9}, 1234};
    wanted.remote_qkey = 56;
    expect_same(WorkRequest::send(kQp, kSge).to({AhHandle{7, 9}, 1234}, 56), wanted);
}

TEST(WorkRequestBuilders, ReferToAnInlinePayload) {
    const std::array<std::byte, 5> payload{};
    WorkRequest wanted = by_hand(Opcode::rdma_write, kRemote);
    wanted.sge = {.addr = reinterpret_cast<std::uintptr_t>(payload.data()), .length = 5};
    wanted.flags = kSignaled | kInline;
    expect_same(WorkRequest::rdma_write(kQp, kSge, kRemote).with_inline(payload), wanted);
    expect_same(WorkRequest::rdma_write(kQp, {}, kRemote).with_inline(payload), wanted);
    const WorkRequest empty = WorkRequest::send(kQp, kSge).with_inline({});
    EXPECT_EQ(empty.num_sge, 0);
    EXPECT_EQ(empty.sge.length, 0u);
    EXPECT_EQ(empty.flags, kSignaled | kInline);
    // Longer than a length can say. It is refused then, and not cut.
    EXPECT_EQ(WorkRequest::send(kQp, {}).with_inline({payload.data(), (std::size_t{1} << 32) + 5}).sge.length,
              0xffffffffu);
}

TEST(WorkRequestBuilders, LeaveOutAnEmptySge) {
    EXPECT_EQ(WorkRequest::recv(kQp, {}).num_sge, 0);
    EXPECT_EQ(WorkRequest::rdma_write(kQp, {}, kRemote).num_sge, 0);
}

}  // namespace
}  // namespace pollcore
