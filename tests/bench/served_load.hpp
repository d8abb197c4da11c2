// The posts and polls of a verbs program, which knows only libibverbs, so that pollcore-run serves it like any other.
//
// Thread safety: one thread.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include <infiniband/verbs.h>

namespace pollcore::bench {

inline constexpr std::uint32_t kBurstMax = 32;
inline constexpr std::uint32_t kSlot = 64;  // bytes of a message
inline constexpr std::uint8_t kPort = 1;
inline constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
inline constexpr std::chrono::seconds kPatience{60};

inline void require(bool holds, const char* what) {
    if (!holds) {
        throw std::runtime_error(std::string(what) + (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
    }
}

/// The pages that the device reads and writes: the messages, and the places where they arrive.
struct alignas(4096) Pages {
    std::array<std::array<std::uint32_t, kSlot / sizeof(std::uint32_t)>, kBurstMax> from{};
    std::array<std::array<std::uint32_t, kSlot / sizeof(std::uint32_t)>, kBurstMax> to{};
};

/// A queue pair that is connected to itself, with its completion queues.
struct Loop {
    ibv_cq_ex* extended = nullptr;  ///< the send completion queue, if it was made by ibv_create_cq_ex()
    ibv_cq* send_cq = nullptr;
    ibv_cq* recv_cq = nullptr;
    ibv_qp* qp = nullptr;

    Loop(ibv_context* context, ibv_pd* pd, bool as_extended) {
        if (as_extended) {
            ibv_cq_init_attr_ex init{.cqe = 2 * kBurstMax, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
            extended = ibv_create_cq_ex(context, &init);
            require(extended != nullptr, "ibv_create_cq_ex()");
            send_cq = ibv_cq_ex_to_cq(extended);
        } else {
            send_cq = ibv_create_cq(context, 2 * kBurstMax, nullptr, nullptr, 0);
        }
        recv_cq = ibv_create_cq(context, 2 * kBurstMax, nullptr, nullptr, 0);
        require(send_cq != nullptr && recv_cq != nullptr, "ibv_create_cq()");
        ibv_qp_init_attr_ex init{};
        init.send_cq = send_cq;
        init.recv_cq = recv_cq;
        init.cap = {.max_send_wr = kBurstMax,
                    .max_recv_wr = kBurstMax,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = kSlot};
        init.qp_type = IBV_QPT_RC;
        init.pd = pd;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | (as_extended ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0);
        init.send_ops_flags = as_extended ? IBV_QP_EX_WITH_RDMA_WRITE : 0;
        qp = ibv_create_qp_ex(context, &init);
        require(qp != nullptr, "ibv_create_qp_ex()");
        connect(context);
    }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;
    ~Loop() {
        ibv_destroy_qp(qp);
        ibv_destroy_cq(send_cq);
        ibv_destroy_cq(recv_cq);
    }

private:
    void connect(ibv_context* context) const {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = kPort;
        attr.qp_access_flags = kAccess;
        require(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
                "to INIT");
        attr = {};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = qp->qp_num;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.port_num = kPort;
        require(ibv_query_gid(context, kPort, 0, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid()");
        attr.min_rnr_timer = 1;
        require(ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
                "to RTR");
        attr = {};
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        require(ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_MAX_QP_RD_ATOMIC) == 0,
                "to RTS");
    }
};

/// The device, opened, with memory.
struct Opened {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    Pages* pages = nullptr;
    ibv_mr* mr = nullptr;

    explicit Opened(const std::string& wanted) {
        int count = 0;
        ibv_device** const list = ibv_get_device_list(&count);
        for (int i = 0; i < count && context == nullptr; ++i) {
            if (wanted == ibv_get_device_name(list[i])) {
                context = ibv_open_device(list[i]);
            }
        }
        ibv_free_device_list(list);
        require(context != nullptr, "there is no device of the name in POLLCORE_TEST_VERBS");
        pd = ibv_alloc_pd(context);
        require(pd != nullptr, "ibv_alloc_pd()");
        // Valgrind's malloc() returns memory that may be executed, which pollcored refuses.
        void* const mapped = ::mmap(nullptr, sizeof(Pages), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(mapped != MAP_FAILED, "mmap()");
        pages = new (mapped) Pages;
        mr = ibv_reg_mr(pd, pages, sizeof(Pages), kAccess);
        require(mr != nullptr, "ibv_reg_mr()");
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() {
        ibv_dereg_mr(mr);
        ::munmap(pages, sizeof(Pages));
        ibv_dealloc_pd(pd);
        ibv_close_device(context);
    }
};

enum class Kind { writes, inline_writes, messages, extended, nothing };

/// One burst after the other. The functions that are not inlined are counted.
class ServedLoad {
public:
    ServedLoad(Kind kind, std::uint32_t burst, const std::string& device)
        : kind_(kind),
          burst_(burst),
          device_(device),
          loop_(device_.context, device_.pd, kind == Kind::extended || kind == Kind::nothing),
          marks_(device_.context, device_.pd, false) {
        for (std::uint32_t i = 0; i < burst; ++i) {
            from_[i] = {.addr = address(device_.pages->from[i]), .length = kSlot, .lkey = device_.mr->lkey};
            to_[i] = {.addr = address(device_.pages->to[i]), .length = kSlot, .lkey = device_.mr->lkey};
            const bool last = i + 1 == burst;
            ibv_send_wr& send = sends_[i];
            send = {.wr_id = i,
                    .next = last ? nullptr : &sends_[i + 1],
                    .sg_list = &from_[i],
                    .num_sge = 1,
                    .opcode = kind == Kind::messages ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
                    .send_flags = IBV_SEND_SIGNALED |
                                  (kind == Kind::inline_writes ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u)};
            send.wr.rdma = {.remote_addr = to_[i].addr, .rkey = device_.mr->rkey};
            receives_[i] = {.wr_id = i, .next = last ? nullptr : &receives_[i + 1], .sg_list = &to_[i], .num_sge = 1};
        }
    }

    void run(std::uint32_t rounds) {
        for (std::uint32_t i = 0; i < rounds; ++i) {
            if (kind_ == Kind::nothing) {
                poll_nothing();
                poll_extended_nothing();
                continue;
            }
            device_.pages->from[burst_ - 1][0] = ++round_;
            if (kind_ == Kind::messages) {
                post_receives();
            }
            kind_ == Kind::extended ? build() : post();
            settle();
            kind_ == Kind::extended ? poll_extended() : poll();
            if (kind_ == Kind::messages) {
                poll_receives();
            }
        }
    }

private:
    template <class Words>
    static std::uint64_t address(const Words& words) {
        return reinterpret_cast<std::uintptr_t>(words.data());
    }

    [[gnu::noinline]] void post() {
        ibv_send_wr* bad = nullptr;
        require(ibv_post_send(loop_.qp, sends_.data(), &bad) == 0, "ibv_post_send()");
    }
    [[gnu::noinline]] void post_receives() {
        ibv_recv_wr* bad = nullptr;
        require(ibv_post_recv(loop_.qp, receives_.data(), &bad) == 0, "ibv_post_recv()");
    }
    [[gnu::noinline]] void build() {
        ibv_qp_ex* const qp = ibv_qp_to_qp_ex(loop_.qp);
        ibv_wr_start(qp);
        for (std::uint32_t i = 0; i < burst_; ++i) {
            qp->wr_id = i;
            qp->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_rdma_write(qp, device_.mr->rkey, to_[i].addr);
            ibv_wr_set_sge(qp, from_[i].lkey, from_[i].addr, from_[i].length);
        }
        require(ibv_wr_complete(qp) == 0, "ibv_wr_complete()");
    }

    /// Waits until all completions of the burst are in the completion queues, without polling them. The last message
    /// has arrived before its completion is there. The other queue pair has the same worker, and its first request is
    /// posted after that. The device completes in order, so the burst's completions are handed out no later than that
    /// request's, and the worker has finished doing so before it looks at the second request.
    [[gnu::noinline]] void settle() {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        const auto wait = [&](const auto& holds) {
            while (!holds()) {
                require(std::chrono::steady_clock::now() < until, "a request has not completed");
                std::this_thread::yield();
            }
        };
        const std::atomic_ref<std::uint32_t> arrived(device_.pages->to[burst_ - 1][0]);
        wait([&] { return arrived.load(std::memory_order_acquire) == round_; });
        for (int i = 0; i < 2; ++i) {
            ibv_send_wr nothing{.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
            ibv_send_wr* bad = nullptr;
            require(ibv_post_send(marks_.qp, &nothing, &bad) == 0, "ibv_post_send() of a mark");
            ibv_wc wc{};
            wait([&] { return ibv_poll_cq(marks_.send_cq, 1, &wc) != 0; });
            require(wc.status == IBV_WC_SUCCESS, "a mark has failed");
        }
    }

    [[gnu::noinline]] void poll_nothing() {
        ibv_wc wc{};
        require(ibv_poll_cq(loop_.recv_cq, 1, &wc) == 0, "more has completed than was posted");
    }
    [[gnu::noinline]] void poll_extended_nothing() {
        ibv_poll_cq_attr attr{};
        require(ibv_start_poll(loop_.extended, &attr) == ENOENT, "more has completed than was posted");
    }
    [[gnu::noinline]] void poll() {
        const auto burst = static_cast<int>(burst_);
        require(ibv_poll_cq(loop_.send_cq, burst, completions_.data()) == burst,
                "a poll has not found all completions");
        require(completions_[burst_ - 1].status == IBV_WC_SUCCESS, "a request has failed");
    }
    [[gnu::noinline]] void poll_receives() {
        const auto burst = static_cast<int>(burst_);
        require(ibv_poll_cq(loop_.recv_cq, burst, completions_.data()) == burst, "a poll has not found all receives");
        require(completions_[burst_ - 1].status == IBV_WC_SUCCESS, "a receive has failed");
    }
    [[gnu::noinline]] void poll_extended() {
        ibv_cq_ex* const cq = loop_.extended;
        ibv_poll_cq_attr attr{};
        std::uint32_t polled = 0;
        std::uint32_t bytes = 0;
        if (ibv_start_poll(cq, &attr) == 0) {
            do {
                require(cq->status == IBV_WC_SUCCESS, "a request has failed");
                bytes += ibv_wc_read_byte_len(cq);
                ++polled;
            } while (polled < burst_ && ibv_next_poll(cq) == 0);
            ibv_end_poll(cq);
        }
        bytes_ += bytes;
        require(polled == burst_, "a poll has not found all completions");
    }

    Kind kind_;
    std::uint32_t burst_;
    std::uint32_t round_ = 0;
    std::uint64_t bytes_ = 0;
    Opened device_;
    Loop loop_;
    Loop marks_;
    std::array<ibv_sge, kBurstMax> from_{};
    std::array<ibv_sge, kBurstMax> to_{};
    std::array<ibv_send_wr, kBurstMax> sends_{};
    std::array<ibv_recv_wr, kBurstMax> receives_{};
    std::array<ibv_wc, kBurstMax> completions_{};
};

}  // namespace pollcore::bench
