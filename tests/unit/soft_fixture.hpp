// Shared by the tests of the software device. The ends of a connection are made by plain calls of Device, and the tests
// use plain verbs on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include "connect/transitions.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore::test {

inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// A clock that stands still until a test sets it.
struct ManualClock {
    std::shared_ptr<std::uint64_t> now = std::make_shared<std::uint64_t>(1);
    [[nodiscard]] std::function<std::uint64_t()> reader() const {
        return [now = now] { return *now; };
    }
};

struct EndOptions {
    QpType type = QpType::rc;
    std::uint32_t qkey = 0x1234;  ///< only for UD; a UD QP is in RTS at once
    std::uint32_t depth = 32;
    std::uint32_t cqe = 256;
    std::uint32_t sges = 4;
    std::uint32_t inline_max = 256;
    std::size_t memory = 1u << 20;
    int mr_access = kAllAccess;
    int qp_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    bool signal_all = false;
    ThreadDomain* domain = nullptr;
    ibv_srq* srq = nullptr;
    CompletionChannel* channel = nullptr;  ///< the channel of the CQ for receives
    bool device_time = false;              ///< true if both CQs have time stamps
};

/// One QP, with a CQ for each of its queues, a PD and a registered buffer.
class End {
public:
    explicit End(SoftDevice& on, const EndOptions& options = {})
        : device(on), type(options.type), memory(options.memory / 8) {
        pd = {device.create_pd(), {&device}};
        send_cq = {device.create_cq({.cqe = options.cqe,
                                     .domain = options.domain,
                                     .extended = options.device_time,
                                     .device_time = options.device_time}),
                   {&device}};
        recv_cq = {device.create_cq({.cqe = options.cqe,
                                     .domain = options.domain,
                                     .channel = options.channel != nullptr ? options.channel->verbs() : nullptr,
                                     .extended = options.device_time,
                                     .device_time = options.device_time}),
                   {&device}};
        QpOptions qp_options;
        qp_options.pd = pd.get();
        qp_options.type = static_cast<ibv_qp_type>(type);
        qp_options.domain = options.domain;
        qp_options.send_cq = send_cq.get();
        qp_options.recv_cq = recv_cq.get();
        qp_options.srq = options.srq;
        qp_options.cap = {options.depth, options.depth, options.sges, options.sges, options.inline_max};
        qp_options.signal_all = options.signal_all;
        mr = {device.register_memory(pd.get(), memory.data(), options.memory, address(0), options.mr_access),
              {&device}};
        qp = {device.create_qp(qp_options), {&device}};
        auto init = type == QpType::ud ? to_datagram_init(device.port(), options.qkey)
                                       : to_init(device.port(), options.qp_access);
        device.modify(qp.get(), init.attr, init.mask);
        if (type == QpType::ud) {
            move_to(IBV_QPS_RTR);
            ready_to_send({});
        }
    }

    [[nodiscard]] QpInfo info() const {
        QpInfo all;
        std::memcpy(all.gid.data(), device.gids().at(0).gid.raw, 16);
        all.qp_num = qp->qp_num;
        all.psn = psn;
        return all;
    }
    void ready_to_receive(const QpInfo& peer, const PathAttributes& path, ibv_mtu mtu = IBV_MTU_1024) {
        auto rtr = to_rtr(peer, path, device.port(), 0, mtu, type);
        device.modify(qp.get(), rtr.attr, rtr.mask);
    }
    void ready_to_send(const PathAttributes& path) {
        auto rts = to_rts(psn, path, type);
        device.modify(qp.get(), rts.attr, rts.mask);
    }
    void move_to(ibv_qp_state state) {
        auto to = to_state(state);
        device.modify(qp.get(), to.attr, to.mask);
    }
    [[nodiscard]] ibv_qp_state state() { return device.query(qp.get(), IBV_QP_STATE).qp_state; }

    [[nodiscard]] std::byte* at(std::size_t offset) { return reinterpret_cast<std::byte*>(memory.data()) + offset; }
    [[nodiscard]] std::uint64_t address(std::size_t offset) { return reinterpret_cast<std::uint64_t>(at(offset)); }
    [[nodiscard]] ibv_sge sge(std::size_t offset, std::uint32_t length) { return {address(offset), length, mr->lkey}; }

    /// Posts one work request to the send queue. It is signaled, unless `flags` says otherwise.
    int post(std::uint64_t wr_id, ibv_wr_opcode opcode, std::vector<ibv_sge> sges, std::uint64_t remote = 0,
             std::uint32_t rkey = 0, unsigned flags = IBV_SEND_SIGNALED, std::uint32_t imm = 0) {
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.opcode = opcode;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        wr.send_flags = flags;
        wr.imm_data = imm;
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = rkey;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp.get(), &wr, &bad);
    }
    int post_atomic(std::uint64_t wr_id, ibv_wr_opcode opcode, ibv_sge sge, std::uint64_t remote, std::uint32_t rkey,
                    std::uint64_t compare_add, std::uint64_t swap = 0) {
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.opcode = opcode;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = compare_add;
        wr.wr.atomic.swap = swap;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp.get(), &wr, &bad);
    }
    int post_datagram(std::uint64_t wr_id, std::vector<ibv_sge> sges, ibv_ah* ah, std::uint32_t qpn, std::uint32_t qkey,
                      ibv_wr_opcode opcode = IBV_WR_SEND, unsigned flags = IBV_SEND_SIGNALED, std::uint32_t imm = 0) {
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.opcode = opcode;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        wr.send_flags = flags;
        wr.imm_data = imm;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = qpn;
        wr.wr.ud.remote_qkey = qkey;
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp.get(), &wr, &bad);
    }
    /// An address handle for the port of `peer`.
    [[nodiscard]] UniqueAh way_to(const End& peer, const PathAttributes& path = {}) {
        ibv_ah_attr attr = to_address(peer.info(), path, device.port(), 0);
        return {device.create_ah(pd.get(), attr), {&device}};
    }
    int post_recv(std::uint64_t wr_id, std::vector<ibv_sge> sges) {
        ibv_recv_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        ibv_recv_wr* bad = nullptr;
        return ibv_post_recv(qp.get(), &wr, &bad);
    }

    [[nodiscard]] static std::optional<ibv_wc> poll(ibv_cq* cq) {
        ibv_wc wc{};
        const int count = ibv_poll_cq(cq, 1, &wc);
        EXPECT_GE(count, 0);
        if (count != 1)
            return std::nullopt;
        return wc;
    }
    /// Polls until a completion comes, or so many times that no completion can come any more.
    [[nodiscard]] static std::optional<ibv_wc> wait(ibv_cq* cq) {
        for (int i = 0; i < 10000; ++i) {
            if (auto wc = poll(cq))
                return wc;
        }
        return std::nullopt;
    }
    [[nodiscard]] std::optional<ibv_wc> sent() const { return wait(send_cq.get()); }
    [[nodiscard]] std::optional<ibv_wc> received() const { return wait(recv_cq.get()); }

    SoftDevice& device;
    QpType type;
    std::vector<std::uint64_t> memory;  // made of words, so that it is aligned for atomics
    std::uint32_t psn = 0xfffffa;       // so high that PSNs soon wrap around
    UniquePd pd;
    UniqueCq send_cq;
    UniqueCq recv_cq;
    UniqueMr mr;
    UniqueQp qp;
};

inline void connect(End& a, End& b, const PathAttributes& path = {}, ibv_mtu mtu = IBV_MTU_1024) {
    a.ready_to_receive(b.info(), path, mtu);
    b.ready_to_receive(a.info(), path, mtu);
    a.ready_to_send(path);
    b.ready_to_send(path);
}

#define EXPECT_WC(wc, id, expected_status)                                           \
    do {                                                                             \
        const auto& wc_ = (wc);                                                      \
        ASSERT_TRUE(wc_.has_value());                                                \
        EXPECT_EQ(wc_->wr_id, static_cast<std::uint64_t>(id));                       \
        EXPECT_EQ(wc_->status, (expected_status)) << ibv_wc_status_str(wc_->status); \
    } while (0)

/// A device for both ends of a connection, and its clock.
class SoftPair : public ::testing::Test {
protected:
    ManualClock clock;
    std::unique_ptr<SoftDevice> device = open_soft_device({.clock_ns = clock.reader()});
};

}  // namespace pollcore::test
