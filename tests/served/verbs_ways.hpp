// Two ways to a software device: the device's own verbs in this process, and those of libibverbs, which
// libpollcore-verbs.so serves over a pollcored. Posts and polls are the inline functions of <infiniband/verbs.h> for
// both.
//
// Errors are returned as verbs return them: an errno value, or a null pointer with errno.
#pragma once

#include <fcntl.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include "connect/transitions.hpp"
#include "device/soft/soft_device.hpp"

namespace pollcore::test {

/// Call this in each turn of a waiting loop. On a busy machine a thread that sleeps has its CPU back sooner than one
/// that yields.
inline void wait_a_little(unsigned turn) {
    constexpr unsigned kQuickTurns = 16;
    if (turn < kQuickTurns) {
        ::sched_yield();
    } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

class Way {
public:
    virtual ~Way() = default;

    [[nodiscard]] virtual ibv_gid gid() = 0;
    virtual ibv_pd* alloc_pd() = 0;
    virtual int dealloc_pd(ibv_pd* pd) = 0;
    /// An extended one is polled by ibv_start_poll().
    virtual ibv_cq* create_cq(int cqe, bool extended) = 0;
    virtual int destroy_cq(ibv_cq* cq) = 0;
    virtual ibv_srq* create_srq(ibv_pd* pd, ibv_srq_attr attr) = 0;
    virtual int modify_srq(ibv_srq* srq, ibv_srq_attr attr, int mask) = 0;
    virtual int query_srq(ibv_srq* srq, ibv_srq_attr& attr) = 0;
    virtual int destroy_srq(ibv_srq* srq) = 0;
    /// Raises init.cap to what the queue pair has. With `builds`, ServedWay's has the functions of ibv_wr_start(3).
    virtual ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr& init, bool builds) = 0;
    virtual int modify_qp(ibv_qp* qp, ibv_qp_attr attr, int mask) = 0;
    virtual int query_qp(ibv_qp* qp, ibv_qp_attr& attr) = 0;
    virtual int destroy_qp(ibv_qp* qp) = 0;
    virtual ibv_mr* reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) = 0;
    virtual int dereg_mr(ibv_mr* mr) = 0;
    virtual ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr attr) = 0;
    virtual int destroy_ah(ibv_ah* ah) = 0;
    /// The asynchronous events that have come. They are acknowledged.
    virtual std::vector<ibv_async_event> events() = 0;
    /// Afterwards the device has what was posted before.
    virtual void let_work() = 0;
};

/// The device's verbs. Its clock moves by let_work() only, so timers cost no time.
class DirectWay final : public Way {
public:
    DirectWay()
        : device_({.name = "direct",
                   .fabric = "random programs",
                   .clock_ns = [this] { return now_; },
                   // libpollcore-verbs.so does that, as libmlx5 does.
                   .profile = {.purges_cqes = true}}) {}

    [[nodiscard]] SoftDevice& device() { return device_; }

    ibv_gid gid() override { return device_.gids().at(0).gid; }
    ibv_pd* alloc_pd() override {
        return made<ibv_pd>([&] { return device_.create_pd(); });
    }
    int dealloc_pd(ibv_pd* pd) override { return device_.destroy(pd); }
    ibv_cq* create_cq(int cqe, bool is_extended) override {
        return made<ibv_cq>(
            [&] { return device_.create_cq({.cqe = static_cast<std::uint32_t>(cqe), .extended = is_extended}); });
    }
    int destroy_cq(ibv_cq* cq) override { return device_.destroy(cq); }
    ibv_srq* create_srq(ibv_pd* pd, ibv_srq_attr attr) override {
        return made<ibv_srq>([&] {
            SrqOptions options{.pd = pd, .depth = attr.max_wr, .sges_max = attr.max_sge};
            return device_.create_srq(options);
        });
    }
    int modify_srq(ibv_srq* srq, ibv_srq_attr attr, int mask) override {
        return done([&] { device_.modify(srq, attr, mask); });
    }
    int query_srq(ibv_srq* srq, ibv_srq_attr& attr) override {
        return done([&] { attr = device_.query(srq); });
    }
    int destroy_srq(ibv_srq* srq) override { return device_.destroy(srq); }
    ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr& init, bool) override {
        return made<ibv_qp>([&] {
            QpOptions options;
            options.pd = pd;
            options.send_cq = init.send_cq;
            options.recv_cq = init.recv_cq;
            options.srq = init.srq;
            options.type = init.qp_type;
            options.cap = init.cap;
            options.signal_all = init.sq_sig_all != 0;
            return device_.create_qp(options);
        });
    }
    int modify_qp(ibv_qp* qp, ibv_qp_attr attr, int mask) override {
        return done([&] { device_.modify(qp, attr, mask); });
    }
    int query_qp(ibv_qp* qp, ibv_qp_attr& attr) override {
        return done([&] { attr = device_.query(qp, IBV_QP_STATE); });
    }
    int destroy_qp(ibv_qp* qp) override { return device_.destroy(qp); }
    ibv_mr* reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) override {
        return made<ibv_mr>(
            [&] { return device_.register_memory(pd, addr, length, reinterpret_cast<std::uintptr_t>(addr), access); });
    }
    int dereg_mr(ibv_mr* mr) override { return device_.destroy(mr); }
    ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr attr) override {
        return made<ibv_ah>([&] { return device_.create_ah(pd, attr); });
    }
    int destroy_ah(ibv_ah* ah) override { return device_.destroy(ah); }
    std::vector<ibv_async_event> events() override {
        std::vector<ibv_async_event> all;
        while (const auto event = device_.next_async_event()) {
            device_.acknowledge(*event);
            all.push_back(*event);
        }
        return all;
    }
    void let_work() override {
        constexpr std::uint64_t kLongerThanAllRetriesNs = 50'000'000;
        device_.advance(now_ + kLongerThanAllRetriesNs);
        now_ += kLongerThanAllRetriesNs;
    }

private:
    template <class T, class Call>
    static T* made(const Call& call) {
        T* object = nullptr;
        errno = done([&] { object = call(); });
        return object;
    }
    template <class Call>
    static int done(const Call& call) {
        try {
            call();
            return 0;
        } catch (const Error& error) {
            return error.code().value();
        } catch (const std::bad_alloc&) {
            return ENOMEM;
        }
    }

    std::uint64_t now_ = 1;
    SoftDevice device_;
};

/// libibverbs'. A device of this name must be there.
class ServedWay final : public Way {
public:
    explicit ServedWay(const std::string& name) {
        int count = 0;
        ibv_device** const list = ibv_get_device_list(&count);
        for (int i = 0; i < count && context_ == nullptr; ++i) {
            if (name == ibv_get_device_name(list[i])) {
                context_ = ibv_open_device(list[i]);
            }
        }
        ibv_free_device_list(list);
        if (context_ == nullptr) {
            throw std::runtime_error("there is no device " + name);
        }
        if (ibv_query_gid(context_, 1, 0, &gid_) != 0) {
            throw std::runtime_error("the device has no GID");
        }
        ::fcntl(context_->async_fd, F_SETFL, ::fcntl(context_->async_fd, F_GETFL) | O_NONBLOCK);
        make_bells();
    }
    ~ServedWay() override {
        for (ibv_qp* qp : bells_) {
            (void)ibv_destroy_qp(qp);
        }
        (void)ibv_destroy_cq(bell_cq_);
        (void)ibv_dealloc_pd(bell_pd_);
        (void)ibv_close_device(context_);
    }

    [[nodiscard]] ibv_context* context() { return context_; }

    ibv_gid gid() override { return gid_; }
    ibv_pd* alloc_pd() override { return ibv_alloc_pd(context_); }
    int dealloc_pd(ibv_pd* pd) override { return ibv_dealloc_pd(pd); }
    ibv_cq* create_cq(int cqe, bool is_extended) override {
        if (!is_extended) {
            return ibv_create_cq(context_, cqe, nullptr, nullptr, 0);
        }
        ibv_cq_init_attr_ex init{};
        init.cqe = static_cast<std::uint32_t>(cqe);
        init.wc_flags = IBV_WC_STANDARD_FLAGS;
        ibv_cq_ex* const cq = ibv_create_cq_ex(context_, &init);
        return cq == nullptr ? nullptr : ibv_cq_ex_to_cq(cq);
    }
    int destroy_cq(ibv_cq* cq) override { return ibv_destroy_cq(cq); }
    ibv_srq* create_srq(ibv_pd* pd, ibv_srq_attr attr) override {
        ibv_srq_init_attr init{.srq_context = nullptr, .attr = attr};
        return ibv_create_srq(pd, &init);
    }
    int modify_srq(ibv_srq* srq, ibv_srq_attr attr, int mask) override { return ibv_modify_srq(srq, &attr, mask); }
    int query_srq(ibv_srq* srq, ibv_srq_attr& attr) override { return ibv_query_srq(srq, &attr); }
    int destroy_srq(ibv_srq* srq) override { return ibv_destroy_srq(srq); }
    ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr& init, bool builds) override {
        if (!builds) {
            return ibv_create_qp(pd, &init);
        }
        constexpr std::uint64_t kOfUd = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        constexpr std::uint64_t kOfUc = kOfUd | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        constexpr std::uint64_t kOfRc =
            kOfUc | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        ibv_qp_init_attr_ex more{};
        more.send_cq = init.send_cq;
        more.recv_cq = init.recv_cq;
        more.srq = init.srq;
        more.cap = init.cap;
        more.qp_type = init.qp_type;
        more.sq_sig_all = init.sq_sig_all;
        more.pd = pd;
        more.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        more.send_ops_flags = init.qp_type == IBV_QPT_RC ? kOfRc : init.qp_type == IBV_QPT_UC ? kOfUc : kOfUd;
        ibv_qp* const qp = ibv_create_qp_ex(context_, &more);
        init.cap = more.cap;
        return qp;
    }
    int modify_qp(ibv_qp* qp, ibv_qp_attr attr, int mask) override { return ibv_modify_qp(qp, &attr, mask); }
    int query_qp(ibv_qp* qp, ibv_qp_attr& attr) override {
        ibv_qp_init_attr init{};
        return ibv_query_qp(qp, &attr, ~0, &init);
    }
    int destroy_qp(ibv_qp* qp) override { return ibv_destroy_qp(qp); }
    ibv_mr* reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) override {
        // Not the macro, which tells the compiler about constant access only.
        return (ibv_reg_mr)(pd, addr, length, access);
    }
    int dereg_mr(ibv_mr* mr) override { return ibv_dereg_mr(mr); }
    ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr attr) override { return ibv_create_ah(pd, &attr); }
    int destroy_ah(ibv_ah* ah) override { return ibv_destroy_ah(ah); }
    std::vector<ibv_async_event> events() override {
        std::vector<ibv_async_event> all;
        for (ibv_async_event event{}; ibv_get_async_event(context_, &event) == 0;) {
            ibv_ack_async_event(&event);
            all.push_back(event);
        }
        return all;
    }
    /// A worker takes the rings of its sessions one by one, so what was posted before may be in a ring that it has just
    /// passed. When it has answered three requests, it has passed all rings.
    void let_work() override {
        for (int i = 0; i < 3; ++i) {
            ring_bell();
        }
    }

private:
    void make_bells() {
        bell_pd_ = ibv_alloc_pd(context_);
        bell_cq_ = ibv_create_cq(context_, 16, nullptr, nullptr, 0);
        for (ibv_qp*& qp : bells_) {
            ibv_qp_init_attr init{};
            init.send_cq = init.recv_cq = bell_cq_;
            init.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
            init.qp_type = IBV_QPT_RC;
            qp = bell_pd_ == nullptr || bell_cq_ == nullptr ? nullptr : ibv_create_qp(bell_pd_, &init);
            if (qp == nullptr) {
                throw std::runtime_error("the device makes no objects");
            }
        }
        for (int i = 0; i < 2; ++i) {
            QpInfo info;
            info.qp_num = bells_[1 - i]->qp_num;
            const ibv_gid own = gid();
            std::copy(std::begin(own.raw), std::end(own.raw), info.gid.begin());
            for (auto move :
                 {to_init(1, IBV_ACCESS_REMOTE_WRITE), to_rtr(info, PathAttributes{}, 1, 0, IBV_MTU_1024, QpType::rc),
                  to_rts(0, PathAttributes{}, QpType::rc)}) {
                if (const int error = ibv_modify_qp(bells_[i], &move.attr, move.mask); error != 0) {
                    throw std::runtime_error("a queue pair cannot be connected: " + std::string(std::strerror(error)));
                }
            }
        }
    }
    void ring_bell() {
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_RDMA_WRITE;  // of no bytes
        wr.send_flags = IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        if (ibv_post_send(bells_[0], &wr, &bad) != 0) {
            throw std::runtime_error("the device takes no requests");
        }
        ibv_wc wc{};
        for (unsigned turn = 0; ibv_poll_cq(bell_cq_, 1, &wc) == 0; ++turn) {
            wait_a_little(turn);
        }
    }

    ibv_context* context_ = nullptr;
    ibv_gid gid_{};
    ibv_pd* bell_pd_ = nullptr;
    ibv_cq* bell_cq_ = nullptr;
    ibv_qp* bells_[2] = {};
};

}  // namespace pollcore::test
