// The cold side of an RDMA device, real or software: everything except posting and polling.
//
// The data path never comes here: it calls ibv_post_send, ibv_post_recv, ibv_poll_cq and ibv_start_poll on the verbs
// objects that this class makes, for every kind of device.
//
// Thread safety: one control thread at a time makes the calls. There is an exception: register_memory(), create_ah(),
// find_neighbour() and destroy() of a memory region may run at the same time as other calls, if nobody destroys their
// protection domain meanwhile. Calls may block (H17).
//
// Ownership: the caller owns the objects that create_* and register_memory return. It gives them back by destroy(), as
// the UniqueX types below do. A device must outlive all objects made on it.
//
// Errors: create_*, register_memory, modify and query throw pollcore::Error. Its text says what was asked for and, if
// that exceeds a limit of the device, the limit. destroy() returns 0 or an errno value instead, because "still in use"
// (EBUSY) is an ordinary answer.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <infiniband/verbs.h>

#include "base/log.hpp"
#include "device/completion_channel.hpp"
#include "device/poll_choice.hpp"
#include "device/send_queue_lines.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/error.hpp"
#include "pollcore/memory.hpp"

namespace pollcore {

/// What the device can do, as far as pollcore checks it before a call (ibv_query_device(3)).
struct DeviceLimits {
    std::uint32_t qps_max = 0;
    std::uint32_t cqes_max = 0;
    std::uint32_t qp_depth_max = 0;   ///< max_qp_wr
    std::uint32_t sges_max = 0;       ///< per work request
    std::uint32_t inline_max = 0;     ///< largest inline payload that this device is known to accept
    std::uint32_t rd_atomic_max = 0;  ///< reads and atomics in flight, as target and as initiator
    std::uint32_t srqs_max = 0;       ///< shared receive queues; 0: the device has none
    std::uint32_t srq_depth_max = 0;  ///< max_srq_wr
    std::uint32_t srq_sges_max = 0;   ///< per receive of a shared receive queue
    std::uint64_t memory_region_max = 0;
    std::uint32_t comp_vectors = 1;          ///< num_comp_vectors
    std::uint32_t moderation_count_max = 0;  ///< largest number of completions for one event; 0: no moderation
    std::uint32_t moderation_period_max_us = 0;
    bool atomics = false;
    std::uint32_t memory_windows_max = 0;  ///< windows of both types together
    bool memory_windows_1 = false;         ///< IBV_DEVICE_MEM_WINDOW
    bool memory_windows_2 = false;         ///< IBV_DEVICE_MEM_WINDOW_TYPE_2A or _2B
    bool invalidation = false;             ///< IBV_WR_LOCAL_INV and _SEND_WITH_INV (IBV_DEVICE_MEM_MGT_EXTENSIONS)
    bool thread_domains = false;           ///< objects made in a ThreadDomain need no locks of the provider
    bool extended_cqs = false;             ///< CQs can be polled by ibv_start_poll and ibv_next_poll
    PollChoice poll = kPollOfOthers;       ///< which way to poll CQs takes fewer cycles, if extended_cqs is true
    /// The valid bits of a completion's time stamp (CqOptions::device_time). 0 means that completions have no time
    /// stamp.
    std::uint64_t completion_timestamp_mask = 0;
    std::uint64_t hca_core_clock_khz = 0;  ///< frequency of the time stamps' clock; 0: the device does not say
    /// If false, ibv_next_poll must not be called on an empty CQ. Then each completion needs its own ibv_start_poll and
    /// ibv_end_poll.
    bool next_poll = true;
    /// True if the provider's code can be kept from accessing the memory of SGEs: see QpOptions::leave_memory.
    bool leaves_memory = false;
};

/// Returns the extended CQ that create_cq() has made with CqOptions::extended.
[[nodiscard]] inline ibv_cq_ex* extended(ibv_cq* cq) noexcept {
    // Undoes ibv_cq_ex_to_cq(3). The verbs promise that both types begin with the same members.
    return reinterpret_cast<ibv_cq_ex*>(cq);
}

/// One entry of a port's GID table.
struct GidEntry {
    std::uint32_t index = 0;
    ibv_gid gid{};
    ibv_gid_type type = IBV_GID_TYPE_ROCE_V2;
    std::uint32_t ifindex = 0;  ///< index of the GID's network interface; 0: none
};

/// One thread's part of a device. Only that thread uses the CQs and QPs that are made in the domain, so the provider
/// may leave out its locks. On a verbs device the domain is an ibv_td, if the device has them. On the software device
/// the domain is an engine, which works when the thread polls.
class ThreadDomain {
public:
    virtual ~ThreadDomain() = default;
};

/// By which another process registers its own memory in this device's context.
struct SharedContext {
    int command_fd = -1;          ///< the device owns it
    std::uint32_t driver_id = 0;  ///< ib_uverbs_ioctl_hdr::driver_id
};

struct CqOptions {
    std::uint32_t cqe = 0;                ///< entries wanted; the device may give more
    ThreadDomain* domain = nullptr;       ///< null: any thread may use the CQ
    ibv_comp_channel* channel = nullptr;  ///< CompletionChannel::verbs() of the domain; null: the CQ has no events
    std::uint32_t comp_vector = 0;        ///< number of the CQ's interrupt vector, below limits().comp_vectors
    void* cq_context = nullptr;
    /// If true, the CQ is an ibv_cq_ex and is polled by ibv_start_poll. The standard fields and the immediates of its
    /// completions can be read. With a domain the CQ is single-threaded, if the device offers that. create_cq() throws
    /// EOPNOTSUPP if DeviceLimits::extended_cqs is false.
    bool extended = false;
    /// Only with `extended`. If true, ibv_wc_read_completion_ts can be called on the CQ, too. create_cq() throws
    /// EOPNOTSUPP if DeviceLimits::completion_timestamp_mask is 0.
    bool device_time = false;
};

struct QpOptions {
    ibv_pd* pd = nullptr;
    ThreadDomain* domain = nullptr;  ///< the domain of its CQs
    ibv_cq* send_cq = nullptr;
    ibv_cq* recv_cq = nullptr;
    ibv_srq* srq = nullptr;  ///< the SRQ that receives are taken from; null: the QP has a receive queue of its own
    ibv_qp_type type = IBV_QPT_RC;
    ibv_qp_cap cap{};
    bool signal_all = false;
    /// If true, the provider's code must leave the memory of SGEs to the device. At the addresses of SGEs this process
    /// may have other memory, or none: they are another process's, or their region was deregistered before the
    /// completion was polled. By default some providers do touch it: their NIC puts small messages into CQEs, and the
    /// CPU copies them to the SGE's address when the CQ is polled (H8). create_qp() throws EOPNOTSUPP if
    /// DeviceLimits::leaves_memory is false.
    bool leave_memory = false;
    void* qp_context = nullptr;
};

struct SrqOptions {
    ibv_pd* pd = nullptr;
    ThreadDomain* domain = nullptr;  ///< the domain of its QPs
    std::uint32_t depth = 0;         ///< receives wanted; the device may give more
    std::uint32_t sges_max = 1;      ///< per receive
    void* srq_context = nullptr;
};

class Device {
public:
    virtual ~Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    /// Returns "soft" or "verbs" with the device's name and further details, for messages and reports.
    [[nodiscard]] virtual std::string describe() const = 0;
    [[nodiscard]] virtual bool is_software() const noexcept = 0;
    /// Whether context() is one of the kernel's, so that share() has something to give.
    [[nodiscard]] virtual bool has_kernel() const noexcept { return false; }
    [[nodiscard]] virtual ibv_context* context() noexcept = 0;
    [[nodiscard]] virtual const DeviceLimits& limits() const noexcept = 0;
    /// The device's NUMA node, or -1 when the kernel does not say.
    [[nodiscard]] virtual int numa_node() const noexcept = 0;
    [[nodiscard]] std::uint8_t port() const noexcept { return port_; }

    // Each of these asks the device at each call, because ports go down, and tables change.
    [[nodiscard]] virtual ibv_device_attr_ex query_device() = 0;
    [[nodiscard]] virtual ibv_port_attr query_port() = 0;
    [[nodiscard]] virtual std::vector<GidEntry> gids() = 0;
    /// Returns entry `index` of the port's P_Key table, in host byte order. ibv_query_pkey(3).
    [[nodiscard]] virtual std::uint16_t query_pkey(std::uint32_t index) = 0;

    /// Returns what another process needs to register memory in this context, or nothing if no kernel stands behind the
    /// device. The other process can then destroy each object of the context, and put another in its place. So from now
    /// on destroy() succeeds if the object is gone already, or if its end takes too long. What the provider has
    /// allocated for such an object stays allocated.
    [[nodiscard]] virtual std::optional<SharedContext> share() { return std::nullopt; }
    /// After share(): from now on destroy() also succeeds if the other process keeps the object in use. The object then
    /// ends with the context, when no process has a copy of its descriptor.
    virtual void let_go() noexcept {}
    /// The other process has destroyed an object of this context that is not its own, or holds up the end of one.
    [[nodiscard]] virtual bool abused() const noexcept { return false; }
    /// The end of an object was held up, and a thread may still use the device. It must never be destroyed.
    [[nodiscard]] virtual bool must_stay() const noexcept { return false; }

    [[nodiscard]] virtual std::unique_ptr<ThreadDomain> create_thread_domain() = 0;
    [[nodiscard]] virtual ibv_pd* create_pd() = 0;
    /// Makes a channel for CQs of this domain. ibv_create_comp_channel(3).
    [[nodiscard]] virtual std::unique_ptr<CompletionChannel> create_channel(ThreadDomain* domain) = 0;
    [[nodiscard]] virtual ibv_cq* create_cq(const CqOptions& options) = 0;
    /// From now on the CQ raises one event for every `count` completions. After `period_us` microseconds it raises an
    /// event for fewer completions, too. ibv_modify_cq(3). The caller must keep to the limits of moderation in
    /// limits().
    virtual void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) = 0;
    /// Makes a QP in RESET. Raises `options.cap` to the capacity that the device gave.
    [[nodiscard]] virtual ibv_qp* create_qp(QpOptions& options) = 0;
    /// The cache lines to which the provider writes work requests, if they are known.
    [[nodiscard]] virtual SendQueueLines send_queue_lines(ibv_qp*) { return {}; }
    /// Makes an SRQ. Raises `options.depth` and `options.sges_max` to the capacity that the device gave.
    [[nodiscard]] virtual ibv_srq* create_srq(SrqOptions& options) = 0;
    /// `iova` is the address that work requests and peers use; ibv_reg_mr_iova(3). An Error names `iova` and not
    /// `addr`: the error may be sent to another process, which must not learn an address of this process.
    [[nodiscard]] virtual ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                                  int access) = 0;
    /// ibv_reg_dmabuf_mr(3).
    [[nodiscard]] virtual ibv_mr* register_dmabuf(ibv_pd* pd, const DmabufRange& range, std::uint64_t iova,
                                                  int access) = 0;
    /// Makes a memory window that is not bound. ibv_alloc_mw(3).
    [[nodiscard]] virtual ibv_mw* create_mw(ibv_pd* pd, ibv_mw_type type) = 0;
    /// Makes an address handle for the datagrams of QPs of this PD. May ask the network for the neighbour's address
    /// (H15).
    [[nodiscard]] virtual ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr& attr) = 0;
    /// Waits until the kernel knows the neighbour's address, so that connecting a queue pair does not have to wait for
    /// it (H15). Throws Error if no neighbour answers. Any thread may call this. The call may take a second. Does
    /// nothing on a device where connecting never waits.
    virtual void find_neighbour(ibv_pd* pd, ibv_ah_attr& attr) {
        (void)pd;
        (void)attr;
    }
    /// Returns the address of a datagram's sender, taken from the completion and from the GRH at the beginning of the
    /// receive buffer. ibv_init_ah_from_wc(3).
    [[nodiscard]] virtual ibv_ah_attr way_back(ibv_wc& wc, ibv_grh& grh) = 0;
    virtual void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) = 0;
    virtual ibv_qp_attr query(ibv_qp* qp, int mask) = 0;
    /// Whether the bytes of an RDMA write arrive at this QP in order: when the last byte is there, all are (H12). The
    /// QP must be in RTS. ibv_query_qp_data_in_order(3).
    [[nodiscard]] virtual bool writes_in_order(ibv_qp* qp) = 0;
    virtual void modify(ibv_srq* srq, ibv_srq_attr& attr, int mask) = 0;
    virtual ibv_srq_attr query(ibv_srq* srq) = 0;

    virtual int destroy(ibv_pd* pd) noexcept = 0;
    virtual int destroy(ibv_ah* ah) noexcept = 0;
    virtual int destroy(ibv_cq* cq) noexcept = 0;
    virtual int destroy(ibv_qp* qp) noexcept = 0;
    virtual int destroy(ibv_srq* srq) noexcept = 0;
    virtual int destroy(ibv_mr* mr) noexcept = 0;
    /// As destroy(). Returns true only if no device reaches the region's memory from now on.
    [[nodiscard]] virtual bool close_off(ibv_mr* mr) noexcept {
        const int error = destroy(mr);
        return error == 0 || error == EIO;  // EIO: the device was removed
    }
    /// Also ends the window's binding.
    virtual int destroy(ibv_mw* window) noexcept = 0;

    /// The descriptor is readable if next_async_event() has an event to return. It is non-blocking, and the device owns
    /// it.
    [[nodiscard]] virtual int async_fd() const noexcept = 0;
    /// An event that was taken must be acknowledged before its object is destroyed (H16).
    [[nodiscard]] virtual std::optional<ibv_async_event> next_async_event() = 0;
    virtual void acknowledge(const ibv_async_event& event) noexcept = 0;

    /// Returns the RNR counts that the device keeps, for the whole device or for one QP. Returns nothing if the device
    /// does not count (H7).
    [[nodiscard]] virtual std::optional<RnrCounts> rnr_counts() = 0;
    [[nodiscard]] virtual std::optional<RnrCounts> rnr_counts(ibv_qp* qp) = 0;

protected:
    Device(std::string name, std::uint8_t port) : name_(std::move(name)), port_(port) {}

private:
    std::string name_;
    std::uint8_t port_;
};

/// Gives an object back to its device.
template <class T>
struct DeviceDeleter {
    Device* device = nullptr;
    void operator()(T* object) const noexcept {
        // EIO means that the device was removed, and its objects with it.
        if (const int error = device->destroy(object); error != 0 && error != EIO) {
            log_error("{} keeps an object that is of no more use: {}", device->describe(), std::strerror(error));
        }
    }
};
template <class T>
using DeviceObject = std::unique_ptr<T, DeviceDeleter<T>>;
using UniquePd = DeviceObject<ibv_pd>;
using UniqueAh = DeviceObject<ibv_ah>;
using UniqueCq = DeviceObject<ibv_cq>;
using UniqueQp = DeviceObject<ibv_qp>;
using UniqueSrq = DeviceObject<ibv_srq>;
using UniqueMr = DeviceObject<ibv_mr>;
using UniqueMw = DeviceObject<ibv_mw>;

}  // namespace pollcore
