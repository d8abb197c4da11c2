// Queue pairs of libibverbs, with libmlx5 below, and the model below libmlx5. The pace is "hand": the NIC does nothing
// without step().
#pragma once

#include <fcntl.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include "control.h"

namespace mlx5_model {

template <class Object, int (*destroy)(Object*)>
struct Destroy {
    void operator()(Object* object) const { EXPECT_EQ(destroy(object), 0); }
};
using Context = std::unique_ptr<ibv_context, Destroy<ibv_context, ibv_close_device>>;
using Pd = std::unique_ptr<ibv_pd, Destroy<ibv_pd, ibv_dealloc_pd>>;
using Mr = std::unique_ptr<ibv_mr, Destroy<ibv_mr, ibv_dereg_mr>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Destroy<ibv_comp_channel, ibv_destroy_comp_channel>>;
using Cq = std::unique_ptr<ibv_cq, Destroy<ibv_cq, ibv_destroy_cq>>;
using Srq = std::unique_ptr<ibv_srq, Destroy<ibv_srq, ibv_destroy_srq>>;
using Qp = std::unique_ptr<ibv_qp, Destroy<ibv_qp, ibv_destroy_qp>>;
using Ah = std::unique_ptr<ibv_ah, Destroy<ibv_ah, ibv_destroy_ah>>;
using Mw = std::unique_ptr<ibv_mw, Destroy<ibv_mw, ibv_dealloc_mw>>;

inline Context open_device(std::string_view name) {
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    Context context;
    for (int i = 0; list != nullptr && i < count; ++i) {
        if (name == ibv_get_device_name(list[i])) {
            context.reset(ibv_open_device(list[i]));
        }
    }
    ibv_free_device_list(list);
    EXPECT_NE(context, nullptr) << name;
    if (context != nullptr) {
        EXPECT_EQ(::fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
    }
    return context;
}

/// Takes and acknowledges the next event. Returns nullopt if there is none; errno says why.
inline std::optional<ibv_async_event> next_event(ibv_context* context) {
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0) {
        return std::nullopt;
    }
    ibv_ack_async_event(&event);
    return event;
}
/// Returns -1 if there is no event.
inline int next_event_type(ibv_context* context) {
    const auto event = next_event(context);
    return event ? static_cast<int>(event->event_type) : -1;
}

inline constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
inline constexpr std::uint32_t kQkey = 0x11111111;

struct Options {
    const char* device = "mlx5_0";
    ibv_qp_type type = IBV_QPT_RC;
    std::uint32_t depth = 16;
    std::uint32_t sges = 4;
    std::uint32_t inline_bytes = 64;
    int cqes = 63;
    bool signal_all = false;
    bool channel = false;
    bool srq = false;
    bool payload_in_cqe = true;
    std::uint16_t cqe_bytes = 64;
};

/// The attributes of a connection between two ends.
struct Path {
    std::uint8_t timeout = 1;  ///< 8 microseconds
    std::uint8_t retries = 7;
    std::uint8_t rnr_retries = 7;
    std::uint8_t rnr_timer = 1;    ///< 10 microseconds
    std::uint32_t psn = 0xfffffe;  ///< wraps soon
    int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
};

/// One queue pair with its context, PD, CQs and memory.
class End {
public:
    static constexpr std::size_t kBytes = 1 << 14;

    explicit End(const Options& chosen = {})
        : options(chosen), context(open_device(chosen.device)), memory(kBytes / 8) {
        pd.reset(ibv_alloc_pd(context.get()));
        mr.reset(ibv_reg_mr(pd.get(), memory.data(), kBytes, kAllAccess));
        if (options.channel) {
            channel.reset(ibv_create_comp_channel(context.get()));
            EXPECT_EQ(::fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
        }
        send_cq.reset(make_cq(&send_cq));
        recv_cq.reset(make_cq(&recv_cq));
        if (options.srq) {
            ibv_srq_init_attr attributes{};
            attributes.attr = {options.depth, options.sges, 0};
            srq.reset(ibv_create_srq(pd.get(), &attributes));
        }
        ibv_qp_init_attr_ex attributes{};
        attributes.send_cq = send_cq.get();
        attributes.recv_cq = recv_cq.get();
        attributes.srq = srq.get();
        attributes.cap = {options.depth, options.srq ? 0 : options.depth, options.sges, options.srq ? 0 : options.sges,
                          options.inline_bytes};
        attributes.qp_type = options.type;
        attributes.sq_sig_all = options.signal_all ? 1 : 0;
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
        attributes.pd = pd.get();
        mlx5dv_qp_init_attr own{};
        if (!options.payload_in_cqe) {
            own.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
            own.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
        }
        qp.reset(mlx5dv_create_qp(context.get(), &attributes, &own));
        capabilities = attributes.cap;
        EXPECT_TRUE(pd && mr && send_cq && recv_cq && qp) << std::strerror(errno);
    }

    [[nodiscard]] ibv_cq* make_cq(void* told) const {
        ibv_cq_init_attr_ex attributes{};
        attributes.cqe = static_cast<std::uint32_t>(options.cqes);
        attributes.cq_context = told;
        attributes.channel = channel.get();
        attributes.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} | std::uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
        mlx5dv_cq_init_attr own{};
        own.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
        own.cqe_size = options.cqe_bytes;
        ibv_cq_ex* const made = mlx5dv_create_cq(context.get(), &attributes, &own);
        return made == nullptr ? nullptr : ibv_cq_ex_to_cq(made);
    }
    [[nodiscard]] std::uint32_t number() const { return qp->qp_num; }
    [[nodiscard]] std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(memory.data()); }
    [[nodiscard]] std::uint64_t at(std::size_t offset) { return reinterpret_cast<std::uint64_t>(bytes() + offset); }
    void write(std::size_t offset, std::string_view text) { std::memcpy(bytes() + offset, text.data(), text.size()); }
    [[nodiscard]] std::string text(std::size_t offset, std::size_t length) {
        return {reinterpret_cast<char*>(bytes()) + offset, length};
    }
    [[nodiscard]] ibv_sge part(std::size_t offset, std::size_t length) {
        return {at(offset), static_cast<std::uint32_t>(length), mr->lkey};
    }
    [[nodiscard]] ibv_gid gid() const {
        ibv_gid gid{};
        EXPECT_EQ(ibv_query_gid(context.get(), 1, 1, &gid), 0);
        return gid;
    }
    [[nodiscard]] std::uint32_t number_of(const Cq& cq) const {
        mlx5dv_cq own{};
        mlx5dv_obj object{};
        object.cq = {cq.get(), &own};
        EXPECT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), 0);
        return own.cqn;
    }
    [[nodiscard]] ibv_qp_state state() const {
        ibv_qp_attr attributes{};
        ibv_qp_init_attr made{};
        EXPECT_EQ(ibv_query_qp(qp.get(), &attributes, IBV_QP_STATE, &made), 0);
        return attributes.qp_state;
    }

    int modify(ibv_qp_attr attributes, ibv_qp_state to, int mask = 0) const {
        attributes.qp_state = to;
        return ibv_modify_qp(qp.get(), &attributes, mask | IBV_QP_STATE);
    }
    [[nodiscard]] int init(const Path& path = {}) const {
        ibv_qp_attr attributes{};
        attributes.port_num = 1;
        attributes.qkey = kQkey;
        attributes.qp_access_flags = static_cast<unsigned>(path.access);
        return modify(
            attributes, IBV_QPS_INIT,
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | (options.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    }
    [[nodiscard]] int ready_to_receive(const ibv_gid& gid, std::uint32_t to, const Path& path = {}) const {
        ibv_qp_attr attributes{};
        attributes.path_mtu = IBV_MTU_1024;
        attributes.dest_qp_num = to;
        attributes.rq_psn = path.psn;
        attributes.max_dest_rd_atomic = 4;
        attributes.min_rnr_timer = path.rnr_timer;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.dgid = gid;
        attributes.ah_attr.grh.sgid_index = 1;
        int mask = 0;
        if (options.type != IBV_QPT_UD) {
            mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        }
        return modify(attributes, IBV_QPS_RTR,
                      mask | (options.type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    }
    [[nodiscard]] int ready_to_send(const Path& path = {}) const {
        ibv_qp_attr attributes{};
        attributes.sq_psn = path.psn;
        attributes.timeout = path.timeout;
        attributes.retry_cnt = path.retries;
        attributes.rnr_retry = path.rnr_retries;
        attributes.max_rd_atomic = 4;
        constexpr int kReliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        return modify(attributes, IBV_QPS_RTS, IBV_QP_SQ_PSN | (options.type == IBV_QPT_RC ? kReliable : 0));
    }

    /// Sets the fields of `request` that callers leave out: ID, opcode, SGEs, IBV_SEND_SIGNALED.
    int post(ibv_wr_opcode opcode, std::uint64_t id, std::vector<ibv_sge> parts, ibv_send_wr request = {}) const {
        request.wr_id = id;
        request.opcode = opcode;
        request.send_flags |= IBV_SEND_SIGNALED;
        request.sg_list = parts.data();
        request.num_sge = static_cast<int>(parts.size());
        ibv_send_wr* bad = nullptr;
        return ibv_post_send(qp.get(), &request, &bad);
    }
    int post_receive(std::uint64_t id, std::vector<ibv_sge> parts) const {
        ibv_recv_wr request{id, nullptr, parts.data(), static_cast<int>(parts.size())};
        ibv_recv_wr* bad = nullptr;
        return srq != nullptr ? ibv_post_srq_recv(srq.get(), &request, &bad) : ibv_post_recv(qp.get(), &request, &bad);
    }
    static std::optional<ibv_wc> poll(const Cq& cq) {
        ibv_wc completion{};
        return ibv_poll_cq(cq.get(), 1, &completion) == 1 ? std::optional(completion) : std::nullopt;
    }
    /// Returns the next completion. Runs the NIC until there is one.
    static ibv_wc next(const Cq& cq) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        do {
            if (const auto completion = poll(cq)) {
                return *completion;
            }
            mlx5_model_step(64);
        } while (std::chrono::steady_clock::now() < end);
        ADD_FAILURE() << "no completion came";
        ibv_wc none{};
        none.status = IBV_WC_FATAL_ERR;
        return none;
    }
    [[nodiscard]] ibv_wc sent() const { return next(send_cq); }
    [[nodiscard]] ibv_wc received() const { return next(recv_cq); }

    Options options;
    Context context;
    std::vector<std::uint64_t> memory;
    Pd pd;
    Mr mr;
    CompletionChannel channel;
    Cq send_cq;
    Cq recv_cq;
    Srq srq;
    Qp qp;
    ibv_qp_cap capabilities{};
};

inline void connect(const End& one, const End& other, const Path& path = {}) {
    ASSERT_EQ(one.init(path), 0);
    ASSERT_EQ(other.init(path), 0);
    ASSERT_EQ(one.ready_to_receive(other.gid(), other.number(), path), 0);
    ASSERT_EQ(other.ready_to_receive(one.gid(), one.number(), path), 0);
    ASSERT_EQ(one.ready_to_send(path), 0);
    ASSERT_EQ(other.ready_to_send(path), 0);
}

/// A request whose target is the memory of `to`, at an offset.
inline ibv_send_wr to_memory(End& to, std::size_t offset) {
    ibv_send_wr request{};
    request.wr.rdma.remote_addr = to.at(offset);
    request.wr.rdma.rkey = to.mr->rkey;
    return request;
}
inline ibv_send_wr atomic_on(End& to, std::size_t offset, std::uint64_t compare_add, std::uint64_t swap = 0) {
    ibv_send_wr request{};
    request.wr.atomic.remote_addr = to.at(offset);
    request.wr.atomic.rkey = to.mr->rkey;
    request.wr.atomic.compare_add = compare_add;
    request.wr.atomic.swap = swap;
    return request;
}

struct Pair {
    explicit Pair(const Options& options = {}, const Path& path = {}) : here(options), there(options) {
        connect(here, there, path);
    }
    End here;
    End there;
};

}  // namespace mlx5_model
