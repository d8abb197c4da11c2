// Makes, changes and destroys the objects of a verbs device.
#include "device/verbs/verbs_device.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <infiniband/mlx5dv.h>

#include "device/verbs/thread_domain.hpp"
#include "device/verbs/verbs_channel.hpp"
#include "device/verbs/verbs_error.hpp"

namespace pollcore {
namespace {

std::string_view state_name(ibv_qp_state state) {
    constexpr std::array<std::string_view, 7> kNames{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    const auto index = static_cast<std::size_t>(state);
    return index < kNames.size() ? kNames[index] : "an unknown state";
}

[[noreturn]] void beyond_limit(const std::string& device, std::string_view what, std::uint64_t asked,
                               std::uint64_t available) {
    throw Error(EINVAL,
                fmt::format("RDMA device {} cannot give {} {}: it has at most {}", device, asked, what, available));
}

// The names that providers give in sysfs to the counters of RnrCounts.
struct RnrCounterNames {
    std::string_view received;
    std::string_view sent;
};
constexpr std::array kRnrCounters = {
    RnrCounterNames{"rcvd_rnr_err", "send_rnr_err"},        // rxe
    RnrCounterNames{"rnr_nak_retry_err", "out_of_buffer"},  // mlx5
};

std::optional<std::uint64_t> read_counter(const std::string& file_name) {
    std::ifstream file(file_name);
    std::uint64_t value = 0;
    return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace

std::unique_ptr<ThreadDomain> VerbsDevice::create_thread_domain() {
    ibv_td* td = nullptr;
    if (limits_.thread_domains) {
        ibv_td_init_attr attr{};
        td = ibv_alloc_td(context_.get(), &attr);
        if (td == nullptr) {
            throw verbs_error(errno, fmt::format("cannot make a thread domain on RDMA device {}", name()));
        }
    }
    try {
        return std::make_unique<VerbsThreadDomain>(*this, td);
    } catch (...) {
        if (td != nullptr) {
            (void)ibv_dealloc_td(td);
        }
        throw;
    }
}

ibv_pd* VerbsDevice::create_pd() {
    ibv_pd* pd = ibv_alloc_pd(context_.get());
    if (pd == nullptr) {
        throw verbs_error(errno, fmt::format("cannot make a protection domain on RDMA device {}", name()));
    }
    return pd;
}

VerbsThreadDomain& VerbsDevice::own(ThreadDomain& domain) const {
    auto* verbs_domain = dynamic_cast<VerbsThreadDomain*>(&domain);
    if (verbs_domain == nullptr || verbs_domain->device() != this) {
        throw Error(EINVAL, fmt::format("a thread domain of another device was given to RDMA device {}", name()));
    }
    return *verbs_domain;
}

ibv_cq* VerbsDevice::create_extended_cq(const CqOptions& options) {
    ibv_cq_init_attr_ex attr{};
    attr.cqe = options.cqe;
    attr.cq_context = options.cq_context;
    attr.channel = options.channel;
    attr.comp_vector = options.comp_vector;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    if (options.device_time) {
        attr.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    }
    const auto make = [&] {
        ibv_cq_ex* cq = ibv_create_cq_ex(context_.get(), &attr);
        return cq == nullptr ? nullptr : ibv_cq_ex_to_cq(cq);
    };
    // A provider may have extended CQs without these flags, or may not take parent domains for CQs. Then errno has one
    // of these values.
    const auto not_offered = [] { return errno == EOPNOTSUPP || errno == EINVAL; };
    if (options.domain != nullptr) {
        VerbsThreadDomain& domain = own(*options.domain);
        attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
        attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        if (limits_.thread_domains) {
            if (cq_pd_ == nullptr) {
                cq_pd_ = create_pd();
            }
            attr.comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD;
            attr.parent_domain = domain.within(cq_pd_);
            if (ibv_cq* cq = make(); cq != nullptr || !not_offered()) {
                return cq;
            }
            attr.comp_mask &= ~static_cast<std::uint32_t>(IBV_CQ_INIT_ATTR_MASK_PD);
            attr.parent_domain = nullptr;
        }
        if (ibv_cq* cq = make(); cq != nullptr || !not_offered()) {
            return cq;
        }
        attr.comp_mask = 0;
        attr.flags = 0;
    }
    return make();
}

// ibv_poll_cq takes the provider's lock even in a thread domain (H6). So only an extended CQ is made in one.
ibv_cq* VerbsDevice::create_cq(const CqOptions& options) {
    if (options.cqe < 1) {
        throw Error(EINVAL, fmt::format("a completion queue on RDMA device {} needs at least 1 entry", name()));
    }
    if (options.cqe > limits_.cqes_max) {
        beyond_limit(name(), "entries in a completion queue", options.cqe, limits_.cqes_max);
    }
    if (options.comp_vector >= limits_.comp_vectors) {
        throw Error(EINVAL, fmt::format("RDMA device {} has no completion vector {}: its vectors are 0 to {}", name(),
                                        options.comp_vector, limits_.comp_vectors - 1));
    }
    if (options.domain != nullptr) {
        (void)own(*options.domain);
    }
    if (options.extended && !limits_.extended_cqs) {
        throw Error(EOPNOTSUPP, fmt::format("RDMA device {} has no extended completion queues", name()));
    }
    if (options.device_time && limits_.completion_timestamp_mask == 0) {
        throw Error(EOPNOTSUPP, fmt::format("RDMA device {} has no time stamps in its completions", name()));
    }
    ibv_cq* cq = options.extended ? create_extended_cq(options)
                                  : ibv_create_cq(context_.get(), static_cast<int>(options.cqe), options.cq_context,
                                                  options.channel, static_cast<int>(options.comp_vector));
    if (cq == nullptr) {
        throw verbs_error(errno,
                          fmt::format("cannot make {} completion queue of {} entries on RDMA device {} (which "
                                      "allows {})",
                                      options.extended ? "an extended" : "a", options.cqe, name(), limits_.cqes_max));
    }
    return cq;
}

// A verbs channel is a file, and does not depend on the thread domain.
std::unique_ptr<CompletionChannel> VerbsDevice::create_channel(ThreadDomain*) {
    return std::make_unique<VerbsChannel>(context_.get());
}

void VerbsDevice::moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) {
    ibv_modify_cq_attr attr{};
    attr.attr_mask = IBV_CQ_ATTR_MODERATE;
    attr.moderate = {.cq_count = count, .cq_period = period_us};
    if (const int error = verbs_result(ibv_modify_cq(cq, &attr)); error != 0) {
        throw verbs_error(error, fmt::format("cannot have an event for every {} completions or {} us on RDMA device {} "
                                             "(which allows {} and {} us)",
                                             count, period_us, name(), limits_.moderation_count_max,
                                             limits_.moderation_period_max_us));
    }
}

void VerbsDevice::check_cap(const ibv_qp_cap& cap) const {
    if (cap.max_send_wr > limits_.qp_depth_max) {
        beyond_limit(name(), "work requests in a send queue", cap.max_send_wr, limits_.qp_depth_max);
    }
    if (cap.max_recv_wr > limits_.qp_depth_max) {
        beyond_limit(name(), "work requests in a receive queue", cap.max_recv_wr, limits_.qp_depth_max);
    }
    if (cap.max_send_sge > limits_.sges_max || cap.max_recv_sge > limits_.sges_max) {
        beyond_limit(name(), "SGEs in a work request", std::max(cap.max_send_sge, cap.max_recv_sge), limits_.sges_max);
    }
    if (cap.max_inline_data > limits_.inline_max) {
        beyond_limit(name(), "inline bytes in a work request", cap.max_inline_data, limits_.inline_max);
    }
}

// Makes a QP whose provider code does not touch the memory of SGEs. By default mlx5 lets the NIC put a small message
// into the CQE. When the CQ is polled, the CPU copies the message to the SGE's address (rdma-core 44,
// providers/mlx5/cq.c).
ibv_qp* VerbsDevice::create_untouching_qp(ibv_pd* pd, ibv_qp_init_attr& attr) {
    if (!limits_.leaves_memory) {
        throw Error(
            EOPNOTSUPP,
            fmt::format("RDMA device {}: its provider is not known to leave the memory of work requests to the device, "
                        "so it serves no attached process",
                        name()));
    }
    if (!mlx5dv_is_supported(context_->device)) {
        return ibv_create_qp(pd, &attr);
    }
    ibv_qp_init_attr_ex extended{};
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.srq = attr.srq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd;
    mlx5dv_qp_init_attr mlx5{};
    mlx5.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    mlx5.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
    ibv_qp* qp = mlx5dv_create_qp(context_.get(), &extended, &mlx5);
    attr.cap = extended.cap;
    return qp;
}

ibv_qp* VerbsDevice::create_qp(QpOptions& options) {
    check_cap(options.cap);
    ibv_qp_init_attr attr{};
    attr.qp_context = options.qp_context;
    attr.send_cq = options.send_cq;
    attr.recv_cq = options.recv_cq;
    attr.srq = options.srq;
    attr.cap = options.cap;
    attr.qp_type = options.type;
    attr.sq_sig_all = options.signal_all ? 1 : 0;
    ibv_pd* pd = options.domain == nullptr ? options.pd : own(*options.domain).within(options.pd);
    ibv_qp* qp = options.leave_memory ? create_untouching_qp(pd, attr) : ibv_create_qp(pd, &attr);
    if (qp == nullptr) {
        const ibv_qp_cap& cap = options.cap;
        throw verbs_error(
            errno,
            fmt::format("cannot make a queue pair on RDMA device {} with {} sends of {} SGEs or {} "
                        "inline bytes, and {} receives of {} SGEs (it allows {} work requests, {} "
                        "SGEs, {} inline bytes, {} queue pairs, but not always together)",
                        name(), cap.max_send_wr, cap.max_send_sge, cap.max_inline_data, cap.max_recv_wr,
                        cap.max_recv_sge, limits_.qp_depth_max, limits_.sges_max, limits_.inline_max, limits_.qps_max));
    }
    options.cap = attr.cap;
    return qp;
}

// mlx5dv_init_obj only reads a queue pair. It must not be given a CQ, because it would mark the CQ as owned by the
// program. Then a reset of a queue pair would leave the queue pair's CQEs in the CQ (H1, D12).
SendQueueLines VerbsDevice::send_queue_lines(ibv_qp* qp) {
    mlx5dv_qp mlx5{};
    mlx5dv_obj obj{};
    obj.qp = {.in = qp, .out = &mlx5};
    if (!mlx5dv_is_supported(context_->device) || mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) != 0 ||
        mlx5.sq.stride != SendQueueLines::kBlock || !std::has_single_bit(mlx5.sq.wqe_cnt)) {
        return {};
    }
    return {mlx5.dbrec + MLX5_SND_DBR, mlx5.sq.buf, mlx5.sq.wqe_cnt};
}

ibv_srq* VerbsDevice::create_srq(SrqOptions& options) {
    if (limits_.srqs_max == 0) {
        throw Error(EOPNOTSUPP, fmt::format("RDMA device {} has no shared receive queues", name()));
    }
    if (options.depth > limits_.srq_depth_max) {
        beyond_limit(name(), "receives in a shared receive queue", options.depth, limits_.srq_depth_max);
    }
    if (options.sges_max > limits_.srq_sges_max) {
        beyond_limit(name(), "SGEs in a receive of a shared receive queue", options.sges_max, limits_.srq_sges_max);
    }
    ibv_srq_init_attr attr{};
    attr.srq_context = options.srq_context;
    attr.attr = {.max_wr = options.depth, .max_sge = options.sges_max, .srq_limit = 0};
    ibv_srq* srq =
        ibv_create_srq(options.domain == nullptr ? options.pd : own(*options.domain).within(options.pd), &attr);
    if (srq == nullptr) {
        throw verbs_error(errno, fmt::format("cannot make a shared receive queue of {} receives of {} SGEs on RDMA "
                                             "device {} (it allows {} receives, {} SGEs, {} shared receive queues)",
                                             options.depth, options.sges_max, name(), limits_.srq_depth_max,
                                             limits_.srq_sges_max, limits_.srqs_max));
    }
    options.depth = std::max(options.depth, attr.attr.max_wr);
    options.sges_max = std::max(options.sges_max, attr.attr.max_sge);
    return srq;
}

void VerbsDevice::check_region(std::uint64_t place, std::size_t length, std::uint64_t iova, int access) const {
    if (length > limits_.memory_region_max) {
        beyond_limit(name(), "bytes in a memory region", length, limits_.memory_region_max);
    }
    constexpr int kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        throw Error(EINVAL, fmt::format("cannot register memory on RDMA device {}: remote write and atomic access need "
                                        "local write access too",
                                        name()));
    }
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (place % page != iova % page) {
        throw Error(
            EINVAL,
            fmt::format("cannot register memory on RDMA device {} by the address {:#x}: it needs the memory's own "
                        "place within a page of {} bytes",
                        name(), iova, page));
    }
}

ibv_mr* VerbsDevice::register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, int access) {
    check_region(reinterpret_cast<std::uintptr_t>(addr), length, iova, access);
    ibv_mr* mr = ibv_reg_mr_iova(pd, addr, length, iova, static_cast<unsigned int>(access));
    if (mr == nullptr) {
        throw verbs_error(
            errno, fmt::format("cannot register {} bytes by the address {:#x} on RDMA device {} (access flags {:#x})",
                               length, iova, name(), access));
    }
    return mr;
}

ibv_mr* VerbsDevice::register_dmabuf(ibv_pd* pd, const DmabufRange& range, std::uint64_t iova, int access) {
    check_region(range.offset, range.bytes, iova, access);
    ibv_mr* mr = ibv_reg_dmabuf_mr(pd, range.offset, range.bytes, iova, range.fd, access);
    if (mr == nullptr) {
        const int error = errno;
        throw verbs_error(error == EPROTONOSUPPORT ? EOPNOTSUPP : error,
                          fmt::format("cannot register {} bytes of a dma-buf by the address {:#x} on RDMA device {}",
                                      range.bytes, iova, name()));
    }
    return mr;
}

ibv_mw* VerbsDevice::create_mw(ibv_pd* pd, ibv_mw_type type) {
    const int number = type == IBV_MW_TYPE_1 ? 1 : 2;
    if (!(type == IBV_MW_TYPE_1 ? limits_.memory_windows_1 : limits_.memory_windows_2)) {
        throw Error(EOPNOTSUPP, fmt::format("RDMA device {} has no memory windows of type {}", name(), number));
    }
    ibv_mw* window = ibv_alloc_mw(pd, type);
    if (window == nullptr) {
        throw verbs_error(
            errno, fmt::format("cannot make a memory window of type {} on RDMA device {} (which allows {})", number,
                               name(), limits_.memory_windows_max));
    }
    return window;
}

ibv_ah* VerbsDevice::create_ah(ibv_pd* pd, ibv_ah_attr& attr) {
    ibv_ah* ah = ibv_create_ah(pd, &attr);
    if (ah == nullptr) {
        throw verbs_error(errno, fmt::format("cannot make an address handle on RDMA device {}: a destination that "
                                             "nobody answers for has none",
                                             name()));
    }
    return ah;
}

void VerbsDevice::find_neighbour(ibv_pd* pd, ibv_ah_attr& attr) {
    (void)UniqueAh(create_ah(pd, attr), {this});
}

ibv_ah_attr VerbsDevice::way_back(ibv_wc& wc, ibv_grh& grh) {
    ibv_ah_attr attr{};
    errno = 0;
    if (ibv_init_ah_from_wc(context_.get(), port(), &wc, &grh, &attr) != 0) {
        throw verbs_error(errno != 0 ? errno : EINVAL,
                          fmt::format("cannot tell from a datagram on RDMA device {} where it came from", name()));
    }
    return attr;
}

void VerbsDevice::modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) {
    const ibv_qp_state from = qp->state;
    if (const int error = verbs_result(ibv_modify_qp(qp, &attr, mask)); error != 0) {
        const std::string change = (mask & IBV_QP_STATE) != 0
                                       ? fmt::format("from {} to {}", state_name(from), state_name(attr.qp_state))
                                       : fmt::format("in {}", state_name(from));
        throw verbs_error(error, fmt::format("cannot modify queue pair {} of RDMA device {} {} (attributes {:#x})",
                                             qp->qp_num, name(), change, mask));
    }
}

ibv_qp_attr VerbsDevice::query(ibv_qp* qp, int mask) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    if (const int error = verbs_result(ibv_query_qp(qp, &attr, mask, &init)); error != 0) {
        throw verbs_error(error, fmt::format("cannot query queue pair {} of RDMA device {}", qp->qp_num, name()));
    }
    return attr;
}

void VerbsDevice::modify(ibv_srq* srq, ibv_srq_attr& attr, int mask) {
    if (const int error = verbs_result(ibv_modify_srq(srq, &attr, mask)); error != 0) {
        throw verbs_error(error,
                          fmt::format("cannot modify a shared receive queue of RDMA device {} (attributes {:#x}, "
                                      "{} receives, limit {})",
                                      name(), mask, attr.max_wr, attr.srq_limit));
    }
}

ibv_srq_attr VerbsDevice::query(ibv_srq* srq) {
    ibv_srq_attr attr{};
    if (const int error = verbs_result(ibv_query_srq(srq, &attr)); error != 0) {
        throw verbs_error(error, fmt::format("cannot query a shared receive queue of RDMA device {}", name()));
    }
    return attr;
}

bool VerbsDevice::writes_in_order(ibv_qp* qp) {
    return ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) != 0;
}

int VerbsDevice::destroy(ibv_pd* pd) noexcept {
    for (VerbsThreadDomain* domain : domains_) {
        if (const int error = destroyed(domain->drop(pd)); error != 0) {
            return error;
        }
    }
    return destroyed(verbs_result(ibv_dealloc_pd(pd)));
}

int VerbsDevice::destroy(ibv_ah* ah) noexcept {
    return destroyed(verbs_result(ibv_destroy_ah(ah)));
}
int VerbsDevice::destroy(ibv_cq* cq) noexcept {
    return destroy_in_time(ibv_destroy_cq, cq);
}
int VerbsDevice::destroy(ibv_qp* qp) noexcept {
    return destroy_in_time(ibv_destroy_qp, qp);
}
int VerbsDevice::destroy(ibv_srq* srq) noexcept {
    return destroy_in_time(ibv_destroy_srq, srq);
}
int VerbsDevice::destroy(ibv_mr* mr) noexcept {
    return destroyed(verbs_result(ibv_dereg_mr(mr)));
}
int VerbsDevice::destroy(ibv_mw* window) noexcept {
    return destroyed(verbs_result(ibv_dealloc_mw(window)));
}

std::optional<ibv_async_event> VerbsDevice::next_async_event() {
    ibv_async_event event{};
    if (ibv_get_async_event(context_.get(), &event) == 0) {
        return event;
    }
    if (errno == EAGAIN || errno == EINTR) {
        return std::nullopt;
    }
    throw verbs_error(errno, fmt::format("cannot take an asynchronous event of RDMA device {}", name()));
}

std::optional<RnrCounts> VerbsDevice::rnr_counts() {
    const std::string directory = fmt::format("{}/ports/{}/hw_counters/", context_->device->ibdev_path, port());
    for (const RnrCounterNames& names : kRnrCounters) {
        const auto received = read_counter(fmt::format("{}{}", directory, names.received));
        const auto sent = read_counter(fmt::format("{}{}", directory, names.sent));
        if (received && sent)
            return RnrCounts{.received = *received, .sent = *sent};
    }
    return std::nullopt;
}

void VerbsDevice::acknowledge(const ibv_async_event& event) noexcept {
    // The parameter of ibv_ack_async_event is not const, although the function only reads it.
    ibv_async_event copy = event;
    ibv_ack_async_event(&copy);
}

}  // namespace pollcore
