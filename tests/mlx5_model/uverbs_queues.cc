// Makes and destroys channels, completion queues, queue pairs and shared receive queues, as the kernel does.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include "device_limits.hpp"
#include "poll_hooks.hpp"
#include "uverbs_file.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kNoChannel = ~0u;

template <class Objects>
auto find(const Objects& objects, std::uint32_t handle) {
    const auto found = objects.find(handle);
    return found == objects.end() ? typename Objects::mapped_type() : found->second;
}

}  // namespace

// ---- Completion queues ----

int UverbsFile::create_channel(const Attributes& attributes) {
    const auto queue = std::make_shared<EventQueue>();
    attach(queue->descriptor(), queue);
    std::erase_if(channels_, [](const auto& held) { return held.expired(); });
    channels_.push_back(queue);
    ib_uverbs_create_comp_channel_resp core{};
    core.fd = static_cast<std::uint32_t>(queue->descriptor());
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    return 0;
}

int UverbsFile::create_cq(const Attributes& attributes, bool extended) {
    ib_uverbs_ex_create_cq request{};
    if (extended) {
        const auto given = attributes.get<ib_uverbs_ex_create_cq>(UVERBS_ATTR_CORE_IN);
        if (!given || given->comp_mask != 0) {
            return EINVAL;
        }
        request = *given;
    } else {
        const auto given = attributes.get<ib_uverbs_create_cq>(UVERBS_ATTR_CORE_IN);
        if (!given) {
            return EINVAL;
        }
        request.user_handle = given->user_handle;
        request.cqe = given->cqe;
        request.comp_vector = given->comp_vector;
        request.comp_channel = given->comp_channel;
    }
    const auto driver =
        attributes.get<mlx5_ib_create_cq>(UVERBS_ATTR_UHW_IN, offsetof(mlx5_ib_create_cq, uar_page_index));
    if (!driver || request.comp_vector >= kCompletionVectors || request.cqe == 0 || request.cqe > kCompletionsMax ||
        (driver->cqe_size != 64 && driver->cqe_size != 128) || driver->buf_addr == 0 || driver->db_addr == 0) {
        return EINVAL;
    }
    if (driver->cqe_comp_en != 0) {
        return EOPNOTSUPP;  // the model offers no compression
    }
    std::shared_ptr<EventQueue> channel;
    if (static_cast<std::uint32_t>(request.comp_channel) != kNoChannel) {
        channel = std::dynamic_pointer_cast<EventQueue>(attached(request.comp_channel));
        if (channel == nullptr) {
            return EINVAL;
        }
    }
    CompletionQueueMemory memory;
    memory.entries = reinterpret_cast<std::uint8_t*>(driver->buf_addr);
    memory.doorbells = reinterpret_cast<volatile std::uint32_t*>(driver->db_addr);
    memory.entry_size = driver->cqe_size;
    memory.entry_count = std::bit_ceil(request.cqe + 1);
    polls_hooked_ = hook_polls(request.user_handle, !polls_hooked_) || polls_hooked_;
    const std::uint32_t number = hca_.fabric().new_number();
    const auto cq = std::make_shared<CompletionQueue>(this, number, request.user_handle, memory, std::move(channel));
    const std::uint32_t handle = next_handle_++;
    cqs_[handle] = cq;
    hca_.fabric().add(cq);
    ib_uverbs_ex_create_cq_resp core{};
    core.base.cq_handle = handle;
    core.base.cqe = memory.entry_count - 1;
    core.response_length = sizeof core;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    mlx5_ib_create_cq_resp answer{};
    answer.cqn = number;
    attributes.put(UVERBS_ATTR_UHW_OUT, answer);
    return 0;
}

int UverbsFile::modify_cq(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_ex_modify_cq>(UVERBS_ATTR_CORE_IN);
    const auto cq = request ? find(cqs_, request->cq_handle) : nullptr;
    if (cq == nullptr || (request->attr_mask & IBV_CQ_ATTR_MODERATE) == 0 ||
        request->attr.cq_period > kModerationPeriodMax) {
        return EINVAL;
    }
    cq->moderate(request->attr.cq_count, request->attr.cq_period);
    return 0;
}

int UverbsFile::destroy_cq(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_destroy_cq>(UVERBS_ATTR_CORE_IN);
    const auto cq = request ? find(cqs_, request->cq_handle) : nullptr;
    if (cq == nullptr) {
        return EINVAL;
    }
    if (std::ranges::any_of(qps_, [&](const auto& item) { return item.second->uses(*cq); })) {
        return EBUSY;
    }
    const CompletionQueue::Read read = cq->forget_events();
    ib_uverbs_destroy_cq_resp core{};
    core.comp_events_reported = read.completion_events;
    core.async_events_reported = read.async_events;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    hca_.fabric().drop(*cq);
    cqs_.erase(request->cq_handle);
    return 0;
}

// ---- Queue pairs ----

int UverbsFile::create_qp(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_create_qp>(UVERBS_ATTR_CORE_IN);
    const auto driver = attributes.get<mlx5_ib_create_qp>(UVERBS_ATTR_UHW_IN, offsetof(mlx5_ib_create_qp, ece_options));
    if (!request || !driver || !pds_.contains(request->pd_handle)) {
        return EINVAL;
    }
    const auto type = static_cast<ibv_qp_type>(request->qp_type);
    if (type != IBV_QPT_RC && type != IBV_QPT_UC && type != IBV_QPT_UD) {
        return EOPNOTSUPP;
    }
    const auto send_cq = find(cqs_, request->send_cq_handle);
    const auto recv_cq = find(cqs_, request->recv_cq_handle);
    const auto srq = request->is_srq != 0 ? find(srqs_, request->srq_handle).queue : nullptr;
    if (send_cq == nullptr || recv_cq == nullptr || (request->is_srq != 0 && srq == nullptr)) {
        return EINVAL;
    }
    const std::uint32_t blocks = driver->sq_wqe_count;
    const std::uint32_t receives = srq != nullptr ? 0 : driver->rq_wqe_count;
    if (request->max_send_wr > kSendBlocksMax || request->max_recv_wr > kReceivesMax ||
        request->max_send_sge > kSgesMax + 2 || request->max_recv_sge > kSharedSgesMax + 1 || blocks > kSendBlocksMax ||
        receives > kReceivesMax || (blocks & (blocks - 1)) != 0 || (receives & (receives - 1)) != 0 ||
        driver->db_addr == 0) {
        return EINVAL;
    }
    if (qps_.size() >= kQueuePairsMax) {
        return ENOMEM;
    }
    const bool uar = (driver->flags & MLX5_QP_FLAG_UAR_PAGE_INDEX) != 0;
    if (uar && !uars_in_use_.contains(driver->bfreg_index)) {
        return EINVAL;
    }
    QueuePair::Facts facts;
    facts.file = this;
    facts.hca = &hca_;
    facts.number = hca_.fabric().new_number();
    facts.user_index = driver->uidx;
    facts.pd = request->pd_handle;
    facts.type = type;
    facts.user_handle = request->user_handle;
    const bool in_cqe = type == IBV_QPT_RC && (driver->flags & MLX5_QP_FLAG_SCATTER_CQE) != 0;
    facts.payload_in_receiver_cqe = in_cqe;
    facts.payload_in_sender_cqe =
        in_cqe && (request->sq_sig_all != 0 || (driver->flags & MLX5_QP_FLAG_ALLOW_SCATTER_CQE) != 0);
    facts.cap = {request->max_send_wr, request->max_recv_wr, request->max_send_sge, request->max_recv_sge,
                 request->max_inline_data};
    facts.signal_all = request->sq_sig_all != 0;
    const auto* buffer = reinterpret_cast<const std::uint8_t*>(driver->buf_addr);
    const auto* doorbells = reinterpret_cast<const volatile std::uint32_t*>(driver->db_addr);
    SendQueueMemory sends;
    sends.wqes = buffer + (receives == 0 ? 0 : std::size_t{receives} << driver->rq_wqe_shift);
    sends.block_count = blocks;
    sends.doorbell = doorbells + 1;
    sends.uar = uar ? uars_ + std::size_t{driver->bfreg_index} * 4096 : nullptr;
    const auto qp = std::make_shared<QueuePair>(
        facts, sends, RingReceiveQueue(facts.number, buffer, receives, driver->rq_wqe_shift, doorbells), send_cq,
        recv_cq, srq);
    const std::uint32_t handle = next_handle_++;
    qps_[handle] = qp;
    hca_.fabric().add(qp);
    ib_uverbs_create_qp_resp core{};
    core.qp_handle = handle;
    core.qpn = facts.number;
    core.max_send_wr = facts.cap.max_send_wr;
    core.max_recv_wr = facts.cap.max_recv_wr;
    core.max_send_sge = facts.cap.max_send_sge;
    core.max_recv_sge = facts.cap.max_recv_sge;
    core.max_inline_data = facts.cap.max_inline_data;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    attributes.put(UVERBS_ATTR_UHW_OUT, mlx5_ib_create_qp_resp{});
    return 0;
}

int UverbsFile::modify_qp(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_modify_qp>(UVERBS_ATTR_CORE_IN);
    const auto qp = request ? find(qps_, request->qp_handle) : nullptr;
    return qp == nullptr ? EINVAL : qp->modify(*request);
}

int UverbsFile::query_qp(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_query_qp>(UVERBS_ATTR_CORE_IN);
    const auto qp = request ? find(qps_, request->qp_handle) : nullptr;
    if (qp == nullptr) {
        return EINVAL;
    }
    ib_uverbs_query_qp_resp core{};
    qp->query(core);
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    return 0;
}

int UverbsFile::destroy_qp(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_destroy_qp>(UVERBS_ATTR_CORE_IN);
    const auto qp = request ? find(qps_, request->qp_handle) : nullptr;
    if (qp == nullptr) {
        return EINVAL;
    }
    ib_uverbs_destroy_qp_resp core{};
    core.events_reported = qp->forget_events();
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    hca_.fabric().drop(*qp);
    qps_.erase(request->qp_handle);
    return 0;
}

// ---- Shared receive queues ----

int UverbsFile::create_srq(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_create_srq>(UVERBS_ATTR_CORE_IN);
    const auto driver = attributes.get<mlx5_ib_create_srq>(UVERBS_ATTR_UHW_IN, offsetof(mlx5_ib_create_srq, flags));
    if (!request || !driver || !pds_.contains(request->pd_handle) || request->max_wr == 0 ||
        request->max_wr > kSharedReceivesMax || request->max_sge > kSharedSgesMax + 1 || driver->buf_addr == 0 ||
        driver->db_addr == 0) {
        return EINVAL;
    }
    if (srqs_.size() >= kSrqsMax) {
        return ENOMEM;
    }
    SharedReceiveQueue::Facts facts;
    facts.number = hca_.fabric().new_number();
    facts.pd = request->pd_handle;
    facts.max_wr = request->max_wr;
    facts.max_sge = request->max_sge;
    Srq srq;
    srq.queue = std::make_shared<SharedReceiveQueue>(facts, reinterpret_cast<const std::uint8_t*>(driver->buf_addr),
                                                     reinterpret_cast<const volatile std::uint32_t*>(driver->db_addr));
    srq.queue->set_limit(request->srq_limit);
    srq.user_handle = request->user_handle;
    const std::uint32_t handle = next_handle_++;
    srqs_[handle] = std::move(srq);
    ib_uverbs_create_srq_resp core{};
    core.srq_handle = handle;
    core.max_wr = facts.max_wr;
    core.max_sge = facts.max_sge;
    core.srqn = facts.number;
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    mlx5_ib_create_srq_resp answer{};
    answer.srqn = facts.number;
    attributes.put(UVERBS_ATTR_UHW_OUT, answer);
    return 0;
}

int UverbsFile::modify_srq(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_modify_srq>(UVERBS_ATTR_CORE_IN);
    const auto srq = request ? find(srqs_, request->srq_handle) : Srq{};
    if (srq.queue == nullptr || (request->attr_mask & IBV_SRQ_MAX_WR) != 0) {
        return EINVAL;
    }
    if ((request->attr_mask & IBV_SRQ_LIMIT) != 0) {
        if (request->srq_limit > srq.queue->facts().max_wr) {
            return EINVAL;
        }
        srq.queue->set_limit(request->srq_limit);
        if (srq.queue->falls_below_limit()) {
            raise(IBV_EVENT_SRQ_LIMIT_REACHED, srq.user_handle, srq.events);
        }
    }
    return 0;
}

int UverbsFile::query_srq(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_query_srq>(UVERBS_ATTR_CORE_IN);
    const auto srq = request ? find(srqs_, request->srq_handle) : Srq{};
    if (srq.queue == nullptr) {
        return EINVAL;
    }
    ib_uverbs_query_srq_resp core{};
    core.max_wr = srq.queue->facts().max_wr;
    core.max_sge = srq.queue->facts().max_sge;
    core.srq_limit = srq.queue->limit();
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    return 0;
}

int UverbsFile::destroy_srq(const Attributes& attributes) {
    const auto request = attributes.get<ib_uverbs_destroy_srq>(UVERBS_ATTR_CORE_IN);
    const auto srq = request ? find(srqs_, request->srq_handle) : Srq{};
    if (srq.queue == nullptr) {
        return EINVAL;
    }
    if (std::ranges::any_of(qps_, [&](const auto& item) { return item.second->uses(*srq.queue); })) {
        return EBUSY;
    }
    forget(srq.events);
    ib_uverbs_destroy_srq_resp core{};
    core.events_reported = srq.events->load();
    attributes.put(UVERBS_ATTR_CORE_OUT, core);
    srqs_.erase(request->srq_handle);
    return 0;
}

}  // namespace mlx5_model
