// What a process can do at Soft-RoCE by the command descriptor of a context that the daemon has opened for it.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>

#include "base/uverbs_command.hpp"

namespace pollcore::test {

class CommandDescriptor {
public:
    /// The kernel hands out handles from 0 on, and gives the lowest free one.
    static constexpr std::uint32_t kHandles = 64;

    explicit CommandDescriptor(int fd) : fd_(fd) {
        while (uverbs_dereg_mr(fd_, driver_, 0xffffffff) == EINVAL) {
            ++driver_;
        }
    }

    // Each destroys what it finds, and returns how many.
    int destroy_qps() {
        return for_each([&](std::uint32_t handle) {
            ib_uverbs_destroy_qp_resp answer{};
            return call(IB_USER_VERBS_CMD_DESTROY_QP, ib_uverbs_destroy_qp{.qp_handle = handle}, &answer);
        });
    }
    int destroy_cqs() {
        return for_each([&](std::uint32_t handle) { return destroy_cq(handle); });
    }
    int destroy_srqs() {
        return for_each([&](std::uint32_t handle) {
            ib_uverbs_destroy_srq_resp answer{};
            return call(IB_USER_VERBS_CMD_DESTROY_SRQ, ib_uverbs_destroy_srq{.srq_handle = handle}, &answer);
        });
    }
    int destroy_ahs() {
        return for_each([&](std::uint32_t handle) {
            return call(IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah{.ah_handle = handle});
        });
    }
    int deregister_mrs() {
        return for_each([&](std::uint32_t handle) { return uverbs_dereg_mr(fd_, driver_, handle) == 0; });
    }
    int deallocate_pds() {
        return for_each([&](std::uint32_t handle) {
            return call(IB_USER_VERBS_CMD_DEALLOC_PD, ib_uverbs_dealloc_pd{.pd_handle = handle});
        });
    }
    int reset_qps() {
        return for_each([&](std::uint32_t handle) { return move(handle, IBV_QPS_RESET); });
    }
    /// Resizes CQs, maps the new queues, and writes over them.
    int resize_cqs_and_overwrite() {
        return for_each([&](std::uint32_t handle) {
            const ib_uverbs_resize_cq asked{.cq_handle = handle, .cqe = 512};
            ib_uverbs_resize_cq_resp answer{};
            rxe_resize_cq_resp made{};
            if (!call(IB_USER_VERBS_CMD_RESIZE_CQ, asked, &answer, &made)) {
                return false;
            }
            void* const queue = ::mmap(nullptr, made.mi.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                                       static_cast<off_t>(made.mi.offset));
            if (queue == MAP_FAILED) {
                return false;
            }
            std::memset(queue, 0xa5, made.mi.size);
            ::munmap(queue, made.mi.size);
            return true;
        });
    }

    bool destroy_cq(std::uint32_t handle) {
        ib_uverbs_destroy_cq_resp answer{};
        return call(IB_USER_VERBS_CMD_DESTROY_CQ, ib_uverbs_destroy_cq{.cq_handle = handle}, &answer);
    }
    [[nodiscard]] std::optional<std::uint32_t> create_pd() {
        ib_uverbs_alloc_pd_resp made{};
        const bool done = call(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd{}, &made);
        return done ? std::optional(made.pd_handle) : std::nullopt;
    }
    /// Returns the channel's descriptor, or -1.
    [[nodiscard]] int create_channel() {
        ib_uverbs_create_comp_channel_resp made{};
        const bool done = call(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, ib_uverbs_create_comp_channel{}, &made);
        return done ? static_cast<int>(made.fd) : -1;
    }
    /// `user_handle` is the pointer that events of the CQ contain.
    [[nodiscard]] std::optional<std::uint32_t> create_cq(std::uint32_t entries, std::uint64_t user_handle,
                                                         int channel = -1) {
        const ib_uverbs_create_cq asked{
            .user_handle = user_handle, .cqe = entries, .comp_vector = 0, .comp_channel = channel};
        ib_uverbs_create_cq_resp made{};
        rxe_create_cq_resp driver{};
        const bool done = call(IB_USER_VERBS_CMD_CREATE_CQ, asked, &made, &driver);
        return done ? std::optional(made.cq_handle) : std::nullopt;
    }
    bool arm(std::uint32_t cq) {
        return call(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_req_notify_cq{.cq_handle = cq, .solicited_only = 0});
    }
    /// Makes a QP that completes on `cq`, writes a receive of each wr_id into its queue, and flushes them. Returns
    /// whether all that was possible.
    bool complete(std::uint32_t pd, std::uint32_t cq, std::span<const std::uint64_t> wr_ids) {
        const ib_uverbs_create_qp asked{.user_handle = 0x1000,
                                        .pd_handle = pd,
                                        .send_cq_handle = cq,
                                        .recv_cq_handle = cq,
                                        .max_send_wr = 1,
                                        .max_recv_wr = static_cast<std::uint32_t>(wr_ids.size()),
                                        .max_send_sge = 1,
                                        .max_recv_sge = 1,
                                        .qp_type = IBV_QPT_RC};
        ib_uverbs_create_qp_resp made{};
        rxe_create_qp_resp driver{};
        if (!call(IB_USER_VERBS_CMD_CREATE_QP, asked, &made, &driver)) {
            return false;
        }
        ib_uverbs_modify_qp init{};
        init.qp_handle = made.qp_handle;
        init.attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        init.qp_state = IBV_QPS_INIT;
        init.port_num = 1;
        if (!call(IB_USER_VERBS_CMD_MODIFY_QP, init)) {
            return false;
        }
        void* const mapped = ::mmap(nullptr, driver.rq_mi.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                                    static_cast<off_t>(driver.rq_mi.offset));
        if (mapped == MAP_FAILED) {
            return false;
        }
        auto& queue = *static_cast<rxe_queue_buf*>(mapped);
        for (const std::uint64_t wr_id : wr_ids) {
            const rxe_recv_wqe wqe{.wr_id = wr_id};
            std::memcpy(queue.data + (std::size_t{queue.producer_index} << queue.log2_elem_size), &wqe, sizeof(wqe));
            std::atomic_ref(queue.producer_index)
                .store((queue.producer_index + 1) & queue.index_mask, std::memory_order_release);
        }
        ::munmap(mapped, driver.rq_mi.size);
        return move(made.qp_handle, IBV_QPS_ERR);
    }

private:
    /// Tries all handles twice, because objects that others use cannot be destroyed at first.
    template <class Call>
    static int for_each(Call&& call) {
        int done = 0;
        for (std::uint32_t i = 0; i < 2 * kHandles; ++i) {
            done += call(i % kHandles);
        }
        return done;
    }
    bool move(std::uint32_t qp, ibv_qp_state state) {
        ib_uverbs_modify_qp to{};
        to.qp_handle = qp;
        to.attr_mask = IBV_QP_STATE;
        to.qp_state = static_cast<std::uint8_t>(state);
        return call(IB_USER_VERBS_CMD_MODIFY_QP, to);
    }
    template <class In>
    bool call(std::uint32_t command, const In& asked) {
        return uverbs_write(driver_, command).in(UVERBS_ATTR_CORE_IN, asked).send(fd_) == 0;
    }
    template <class In, class Out>
    bool call(std::uint32_t command, const In& asked, Out* answer) {
        return uverbs_write(driver_, command)
                   .in(UVERBS_ATTR_CORE_IN, asked)
                   .out(UVERBS_ATTR_CORE_OUT, *answer)
                   .send(fd_) == 0;
    }
    template <class In, class Out, class DriverOut>
    bool call(std::uint32_t command, const In& asked, Out* answer, DriverOut* driver) {
        return uverbs_write(driver_, command)
                   .in(UVERBS_ATTR_CORE_IN, asked)
                   .out(UVERBS_ATTR_CORE_OUT, *answer)
                   .out(UVERBS_ATTR_UHW_OUT, *driver)
                   .send(fd_) == 0;
    }

    const int fd_;
    std::uint32_t driver_ = 0;
};

}  // namespace pollcore::test
