// Shared by the tests of the software device's memory windows: two ends, a window on one end, and the other end as the
// peer that uses the window.
#pragma once

#include <array>

#include "soft_fixture.hpp"

namespace pollcore::test {

inline constexpr int kRead = IBV_ACCESS_REMOTE_READ;
inline constexpr int kWrite = IBV_ACCESS_REMOTE_WRITE;
inline constexpr int kAtomic = IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr std::uint64_t kBegin = 4096;  // offset of the windows in their region
inline constexpr std::uint64_t kLength = 1024;

/// A range of an End's memory to which a window is bound.
struct Range {
    std::uint64_t offset = kBegin;
    std::uint64_t length = kLength;
    int access = kRead | kWrite | kAtomic;
};

inline int post_bind(End& end, std::uint64_t wr_id, ibv_mw* window, std::uint32_t new_key, const Range& range,
                     ibv_mr* mr, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = flags;
    wr.bind_mw.mw = window;
    wr.bind_mw.rkey = new_key;
    wr.bind_mw.bind_info = {mr, end.address(0) + range.offset, range.length, static_cast<unsigned>(range.access)};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end.qp.get(), &wr, &bad);
}

inline int bind_type_1(End& end, std::uint64_t wr_id, ibv_mw* window, const Range& range, ibv_mr* mr) {
    ibv_mw_bind bind{};
    bind.wr_id = wr_id;
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {mr, mr != nullptr ? end.address(0) + range.offset : 0, range.length,
                      static_cast<unsigned>(range.access)};
    return ibv_bind_mw(end.qp.get(), window, &bind);
}

inline int post_key(End& end, std::uint64_t wr_id, ibv_wr_opcode opcode, std::uint32_t key) {
    ibv_send_wr wr{};
    ibv_sge sge = end.sge(0, 16);
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = key;
    if (opcode == IBV_WR_SEND_WITH_INV) {
        wr.sg_list = &sge;
        wr.num_sge = 1;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end.qp.get(), &wr, &bad);
}

/// Replaces the QP of `user` by one in the PD of `owner`. `user` must not be connected yet.
inline void enter_pd(End& user, End& owner) {
    user.qp.reset();
    QpOptions options;
    options.pd = owner.pd.get();
    options.send_cq = user.send_cq.get();
    options.recv_cq = user.recv_cq.get();
    options.cap = {32, 32, 4, 4, 256};
    user.qp = {user.device.create_qp(options), {&user.device}};
    auto init = to_init(1, kAllAccess);
    user.device.modify(user.qp.get(), init.attr, init.mask);
}

/// End b owns the memory and its windows, and end a uses them.
struct WindowPair {
    explicit WindowPair(SoftDevice& device, ibv_mw_type type = IBV_MW_TYPE_2,
                        int mr_access = kAllAccess | IBV_ACCESS_MW_BIND, QpType qp_type = QpType::rc)
        : a(device, {.type = qp_type}), b(device, {.type = qp_type, .mr_access = mr_access}) {
        connect(a, b);
        window = {device.create_mw(b.pd.get(), type), {&device}};
        first_key = window->rkey;
        key = ibv_inc_rkey(first_key);
    }
    /// Binds the window to the range and returns the status. Afterwards window->rkey is the new key.
    [[nodiscard]] ibv_wc_status bind(const Range& range = {}) {
        if (window->type == IBV_MW_TYPE_1) {
            EXPECT_EQ(bind_type_1(b, 90, window.get(), range, b.mr.get()), 0);
            EXPECT_EQ(window->rkey, key);
        } else {
            EXPECT_EQ(post_bind(b, 90, window.get(), key, range, b.mr.get()), 0);
            window->rkey = key;
        }
        const auto wc = b.sent();
        if (!wc || wc->wr_id != 90) {
            ADD_FAILURE() << "the bind did not complete";
            return IBV_WC_GENERAL_ERR;
        }
        if (wc->status == IBV_WC_SUCCESS) {
            EXPECT_EQ(wc->opcode, IBV_WC_BIND_MW);
        }
        return wc->status;
    }
    [[nodiscard]] ibv_wc_status use(ibv_wr_opcode opcode, std::uint64_t address, std::uint32_t rkey,
                                    std::uint32_t length = 8) {
        return use(a, opcode, address, rkey, length);
    }
    [[nodiscard]] static ibv_wc_status use(End& user, ibv_wr_opcode opcode, std::uint64_t address, std::uint32_t rkey,
                                           std::uint32_t length = 8) {
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            EXPECT_EQ(user.post_atomic(91, opcode, user.sge(0, 8), address, rkey, 1), 0);
        } else {
            EXPECT_EQ(user.post(91, opcode, {user.sge(0, length)}, address, rkey), 0);
        }
        const auto wc = user.sent();
        return wc ? wc->status : IBV_WC_GENERAL_ERR;
    }
    [[nodiscard]] std::uint64_t at(std::uint64_t offset) { return b.address(0) + offset; }

    End a;
    End b;
    UniqueMw window;
    std::uint32_t first_key = 0;
    std::uint32_t key = 0;  ///< the window's key after the first bind
};

using SoftWindow = SoftPair;

}  // namespace pollcore::test
