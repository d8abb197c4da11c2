// Verbs objects of one process, for tests that know only libibverbs. The tests run natively on a device of the kernel,
// and by pollcore-run on any device, with equal expectations.
//
// POLLCORE_TEST_VERBS is the device's name, POLLCORE_TEST_GID the number of its GID (0).
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

namespace pollcore::test {

inline const char* setting(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}
/// Whether pollcore-run has started this process.
inline bool is_served() {
    return std::string_view(setting("LD_PRELOAD", "")).find("pollcore-verbs") != std::string::npos;
}

/// Whether something can be read from this descriptor, now or within so many milliseconds.
inline bool is_readable(int fd, int milliseconds = 0) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, milliseconds) == 1;
}

class Verbs : public testing::Test {
protected:
    static constexpr std::size_t kBytes = 64 * 1024;
    static constexpr std::uint8_t kPort = 1;

    void SetUp() override {
        int count = 0;
        ibv_device** const list = ibv_get_device_list(&count);
        ASSERT_NE(list, nullptr);
        const std::string wanted = setting("POLLCORE_TEST_VERBS", "");
        for (int i = 0; i < count && context_ == nullptr; ++i) {
            if (wanted == ibv_get_device_name(list[i])) {
                context_ = ibv_open_device(list[i]);
            }
        }
        ibv_free_device_list(list);
        ASSERT_NE(context_, nullptr) << "POLLCORE_TEST_VERBS=" << wanted << " is none of " << count << " devices";
        pd_ = ibv_alloc_pd(context_);
        ASSERT_NE(pd_, nullptr);
        // Whole pages: on a software device they move.
        memory_ = static_cast<char*>(std::aligned_alloc(4096, kBytes));
        std::memset(memory_, 0, kBytes);
        mr_ = ibv_reg_mr(
            pd_, memory_, kBytes,
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
        ASSERT_NE(mr_, nullptr) << std::strerror(errno);
        gid_index_ = std::atoi(setting("POLLCORE_TEST_GID", "0"));
        ASSERT_EQ(ibv_query_gid(context_, kPort, gid_index_, &gid_), 0);
    }

    void TearDown() override {
        if (mr_ != nullptr) {
            EXPECT_EQ(ibv_dereg_mr(mr_), 0);
        }
        if (pd_ != nullptr) {
            EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
        }
        if (context_ != nullptr) {
            EXPECT_EQ(ibv_close_device(context_), 0);
        }
        std::free(memory_);
    }

    ibv_cq* make_cq(int cqe = 64, ibv_comp_channel* channel = nullptr) {
        ibv_cq* const cq = ibv_create_cq(context_, cqe, this, channel, 0);
        EXPECT_NE(cq, nullptr) << std::strerror(errno);
        return cq;
    }

    ibv_qp* make_qp(ibv_cq* send_cq, ibv_cq* recv_cq, ibv_qp_type type = IBV_QPT_RC, ibv_srq* srq = nullptr,
                    bool signal_all = false) {
        ibv_qp_init_attr init{};
        init.send_cq = send_cq;
        init.recv_cq = recv_cq;
        init.srq = srq;
        init.cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64};
        init.qp_type = type;
        init.sq_sig_all = signal_all;
        ibv_qp* const qp = ibv_create_qp(pd_, &init);
        EXPECT_NE(qp, nullptr) << std::strerror(errno);
        return qp;
    }

    ibv_srq* make_srq() {
        ibv_srq_init_attr init{};
        init.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
        ibv_srq* const srq = ibv_create_srq(pd_, &init);
        EXPECT_NE(srq, nullptr) << std::strerror(errno);
        return srq;
    }

    static int to_init(ibv_qp* qp) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = kPort;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        attr.qkey = kQkey;
        return ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                 (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    }

    [[nodiscard]] ibv_ah_attr way() const {
        ibv_ah_attr attr{};
        attr.is_global = 1;
        attr.grh.dgid = gid_;
        attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
        attr.grh.hop_limit = 64;
        attr.port_num = kPort;
        return attr;
    }

    int to_rtr(ibv_qp* qp, std::uint32_t peer, std::uint32_t psn = 0) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        int mask = IBV_QP_STATE;
        if (qp->qp_type != IBV_QPT_UD) {
            attr.path_mtu = IBV_MTU_1024;
            attr.dest_qp_num = peer;
            attr.rq_psn = psn;
            attr.ah_attr = way();
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        }
        if (qp->qp_type == IBV_QPT_RC) {
            attr.max_dest_rd_atomic = 4;
            attr.min_rnr_timer = 1;
            mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        }
        return ibv_modify_qp(qp, &attr, mask);
    }

    static int to_rts(ibv_qp* qp, std::uint32_t psn = 0) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = psn;
        int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if (qp->qp_type == IBV_QPT_RC) {
            attr.timeout = 14;
            attr.retry_cnt = 7;
            attr.rnr_retry = 7;
            attr.max_rd_atomic = 4;
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        return ibv_modify_qp(qp, &attr, mask);
    }

    static int to_state(ibv_qp* qp, ibv_qp_state state) {
        ibv_qp_attr attr{};
        attr.qp_state = state;
        return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    }

    void connect(ibv_qp* one, ibv_qp* other) {
        for (ibv_qp* qp : {one, other}) {
            ASSERT_EQ(to_init(qp), 0);
        }
        ASSERT_EQ(to_rtr(one, other->qp_num), 0);
        ASSERT_EQ(to_rtr(other, one->qp_num), 0);
        ASSERT_EQ(to_rts(one), 0);
        ASSERT_EQ(to_rts(other), 0);
    }

    [[nodiscard]] ibv_sge sge(std::size_t offset, std::uint32_t length) const {
        return {.addr = reinterpret_cast<std::uintptr_t>(memory_ + offset), .length = length, .lkey = mr_->lkey};
    }

    int post_recv(ibv_qp* qp, std::uint64_t wr_id, std::size_t offset, std::uint32_t length) {
        ibv_sge list = sge(offset, length);
        ibv_recv_wr wr{.wr_id = wr_id, .next = nullptr, .sg_list = &list, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        return ibv_post_recv(qp, &wr, &bad);
    }

    int post_srq_recv(ibv_srq* srq, std::uint64_t wr_id, std::size_t offset, std::uint32_t length) {
        ibv_sge list = sge(offset, length);
        ibv_recv_wr wr{.wr_id = wr_id, .next = nullptr, .sg_list = &list, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        return ibv_post_srq_recv(srq, &wr, &bad);
    }

    ibv_send_wr send_of(std::uint64_t wr_id, ibv_sge* list, int count, ibv_wr_opcode opcode = IBV_WR_SEND) const {
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = list;
        wr.num_sge = count;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        return wr;
    }

    int post_send(ibv_qp* qp, std::uint64_t wr_id, std::size_t offset, std::uint32_t length) {
        ibv_sge list = sge(offset, length);
        ibv_send_wr wr = send_of(wr_id, &list, 1);
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp, &wr, &bad);
    }

    /// Polls until there are `count` completions.
    static std::vector<ibv_wc> take(ibv_cq* cq, std::size_t count) {
        std::vector<ibv_wc> all;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (all.size() < count && std::chrono::steady_clock::now() < end) {
            ibv_wc wc{};
            const int got = ibv_poll_cq(cq, 1, &wc);
            EXPECT_GE(got, 0);
            if (got == 1) {
                all.push_back(wc);
            } else {
                std::this_thread::yield();
            }
        }
        EXPECT_EQ(all.size(), count);
        return all;
    }
    static bool is_empty(ibv_cq* cq) {
        ibv_wc wc{};
        return ibv_poll_cq(cq, 1, &wc) == 0;
    }

    static constexpr std::uint32_t kQkey = 0x11111111;

    ibv_context* context_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_mr* mr_ = nullptr;
    char* memory_ = nullptr;
    int gid_index_ = 0;
    ibv_gid gid_{};
};

}  // namespace pollcore::test
