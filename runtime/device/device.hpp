// The cold side of an RDMA device, real or software.
//
// The data path never comes here: it calls ibv_post_send, ibv_post_recv, ibv_poll_cq and ibv_start_poll on the genuine
// objects that this class makes, whatever the device behind them.
//
// Thread safety: one control thread at a time makes all calls. Only register_memory(), create_ah(), find_neighbour()
// and destroy() of a memory region may run beside other calls, for a domain that nobody destroys meanwhile. Calls may
// block (H17).
//
// Ownership: objects that create_* and register_memory return belong to the caller and go back through destroy(); the
// UniqueX types below do so. A device outlives everything made on it.
//
// Errors: create_*, register_memory, modify and query throw pollcore::Error. It says what was asked and, if that is
// beyond a limit, what the device has. destroy() returns 0 or an errno value, since "still in use" is an answer
// (EBUSY).
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

namespace pollcore {

/// What the device can do, as far as pollcore checks it before a call (ibv_query_device(3)).
struct DeviceLimits {
    std::uint32_t qps_max = 0;
    std::uint32_t cqes_max = 0;
    std::uint32_t qp_depth_max = 0;   ///< max_qp_wr
    std::uint32_t sges_max = 0;       ///< per work request
    std::uint32_t inline_max = 0;     ///< largest inline payload this device is known to take
    std::uint32_t rd_atomic_max = 0;  ///< reads and atomics in flight, as target and as initiator
    std::uint32_t srqs_max = 0;       ///< shared receive queues; 0: the device has none
    std::uint32_t srq_depth_max = 0;  ///< max_srq_wr
    std::uint32_t srq_sges_max = 0;   ///< per receive of a shared receive queue
    std::uint64_t memory_region_max = 0;
    std::uint32_t comp_vectors = 1;          ///< num_comp_vectors
    std::uint32_t moderation_count_max = 0;  ///< completions for one event; 0: events are not moderated
    std::uint32_t moderation_period_max_us = 0;
    bool atomics = false;
    std::uint32_t memory_windows_max = 0;  ///< of both types together
    bool memory_windows_1 = false;         ///< IBV_DEVICE_MEM_WINDOW
    bool memory_windows_2 = false;         ///< IBV_DEVICE_MEM_WINDOW_TYPE_2A or _2B
    bool invalidation = false;             ///< IBV_WR_LOCAL_INV and _SEND_WITH_INV (IBV_DEVICE_MEM_MGT_EXTENSIONS)
    bool thread_domains = false;           ///< objects of a ThreadDomain do without the provider's locks
    bool extended_cqs = false;             ///< CQs can be polled by ibv_start_poll and its kin
    PollChoice poll = kPollOfOthers;       ///< which way to poll CQs takes fewer cycles, if extended_cqs is true
    /// Bits of a completion's time stamp, with CqOptions::device_time; 0: completions have none.
    std::uint64_t completion_timestamp_mask = 0;
    std::uint64_t hca_core_clock_khz = 0;  ///< frequency of the time stamps' clock; 0: the device does not say
    /// False: ibv_next_poll must not find the CQ empty. So each completion is taken between a start and an end of its
    /// own.
    bool next_poll = true;
    /// The provider's code can leave the memory of SGEs alone: QpOptions::foreign_addresses.
    bool foreign_addresses = false;
};

/// The extended CQ that create_cq made with CqOptions::extended.
[[nodiscard]] inline ibv_cq_ex* extended(ibv_cq* cq) noexcept {
    return reinterpret_cast<ibv_cq_ex*>(cq);  // undoes ibv_cq_ex_to_cq(3); verbs promise that both types begin alike
}

/// One entry of a port's GID table.
struct GidEntry {
    std::uint32_t index = 0;
    ibv_gid gid{};
    bool roce_v2 = false;
    std::uint32_t ifindex = 0;  ///< of its network interface, if it has one
};

/// The owner thread's share of a device. Only one thread uses the CQs and QPs made in it, so the provider may leave out
/// its locks. On a verbs device it is an ibv_td, if the device has one. On the software device it is the engine, which
/// moves when this thread polls.
class ThreadDomain {
public:
    virtual ~ThreadDomain() = default;
};

struct CqOptions {
    std::uint32_t cqe = 0;                ///< entries wanted; the device may give more
    ThreadDomain* domain = nullptr;       ///< null: any thread may use it
    ibv_comp_channel* channel = nullptr;  ///< CompletionChannel::verbs() of the domain; null: the CQ has no events
    std::uint32_t comp_vector = 0;        ///< which of the limits().comp_vectors it uses for interrupts
    void* cq_context = nullptr;
    /// The CQ is polled by ibv_start_poll: it is an ibv_cq_ex, whose immediates and standard fields can be read. With
    /// a domain it is single-threaded, if the device offers that. EOPNOTSUPP if DeviceLimits::extended_cqs is false.
    bool extended = false;
    /// Only with `extended`: ibv_wc_read_completion_ts can be called, too. EOPNOTSUPP if
    /// DeviceLimits::completion_timestamp_mask is 0.
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
    /// SGEs hold addresses of another process, at which this process has something else, or nothing. So the provider's
    /// code must not read or write there, as providers do that let the NIC put small messages into CQEs (H8).
    /// EOPNOTSUPP if DeviceLimits::foreign_addresses is false.
    bool foreign_addresses = false;
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
    /// "soft" or "verbs", with the provider's device name: for messages and reports.
    [[nodiscard]] virtual std::string describe() const = 0;
    [[nodiscard]] virtual bool is_software() const noexcept = 0;
    [[nodiscard]] virtual ibv_context* context() noexcept = 0;
    [[nodiscard]] virtual const DeviceLimits& limits() const noexcept = 0;
    /// The device's NUMA node, or -1 when the kernel does not say.
    [[nodiscard]] virtual int numa_node() const noexcept = 0;
    [[nodiscard]] std::uint8_t port() const noexcept { return port_; }

    /// Both ask the device each time: ports go down, and GID tables change.
    [[nodiscard]] virtual ibv_port_attr query_port() = 0;
    [[nodiscard]] virtual std::vector<GidEntry> gids() = 0;

    [[nodiscard]] virtual std::unique_ptr<ThreadDomain> create_thread_domain() = 0;
    [[nodiscard]] virtual ibv_pd* create_pd() = 0;
    /// A channel for CQs of this domain. ibv_create_comp_channel(3).
    [[nodiscard]] virtual std::unique_ptr<CompletionChannel> create_channel(ThreadDomain* domain) = 0;
    [[nodiscard]] virtual ibv_cq* create_cq(const CqOptions& options) = 0;
    /// From here on an event comes for every `count` completions, or for fewer after `period_us` microseconds.
    /// ibv_modify_cq(3). EOPNOTSUPP if limits() have no moderation.
    virtual void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) = 0;
    /// The QP is in RESET. `options.cap` is raised to what the device gave.
    [[nodiscard]] virtual ibv_qp* create_qp(QpOptions& options) = 0;
    /// The lines that the provider posts to, if they are known.
    [[nodiscard]] virtual SendQueueLines send_queue_lines(ibv_qp*) { return {}; }
    /// Receives that several QPs share. `options.depth` and `options.sges_max` are raised to what the device gave.
    [[nodiscard]] virtual ibv_srq* create_srq(SrqOptions& options) = 0;
    /// `iova` is the address that work requests and peers use; ibv_reg_mr_iova(3). An Error names `iova` and not
    /// `addr`: the error may be told to another process, which must not learn an address of this one.
    [[nodiscard]] virtual ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                                  int access) = 0;
    /// A window that is bound to nothing. ibv_alloc_mw(3).
    [[nodiscard]] virtual ibv_mw* create_mw(ibv_pd* pd, ibv_mw_type type) = 0;
    /// An address handle for the datagrams of QPs of this PD. May ask the network for the neighbour's address (H15).
    [[nodiscard]] virtual ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr& attr) = 0;
    /// Returns when the kernel knows the neighbour's address: connecting a queue pair then does not wait (H15). Throws
    /// Error if nobody answers for the address. Any thread; may take a second. Does nothing on a device on which
    /// connecting never waits.
    virtual void find_neighbour(ibv_pd* pd, ibv_ah_attr& attr) {
        (void)pd;
        (void)attr;
    }
    /// The way back to the sender of a datagram, from the completion and the GRH at the beginning of the buffer;
    /// ibv_init_ah_from_wc(3).
    [[nodiscard]] virtual ibv_ah_attr way_back(ibv_wc& wc, ibv_grh& grh) = 0;
    virtual void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) = 0;
    virtual ibv_qp_attr query(ibv_qp* qp, int mask) = 0;
    /// Whether the bytes of an RDMA write arrive at this QP in order, so that the last byte stands for all (H12). The
    /// QP is in RTS. ibv_query_qp_data_in_order(3).
    [[nodiscard]] virtual bool writes_in_order(ibv_qp* qp) = 0;
    virtual void modify(ibv_srq* srq, ibv_srq_attr& attr, int mask) = 0;
    virtual ibv_srq_attr query(ibv_srq* srq) = 0;

    virtual int destroy(ibv_pd* pd) noexcept = 0;
    virtual int destroy(ibv_ah* ah) noexcept = 0;
    virtual int destroy(ibv_cq* cq) noexcept = 0;
    virtual int destroy(ibv_qp* qp) noexcept = 0;
    virtual int destroy(ibv_srq* srq) noexcept = 0;
    virtual int destroy(ibv_mr* mr) noexcept = 0;
    /// A bound window gives access to nothing any more.
    virtual int destroy(ibv_mw* window) noexcept = 0;

    /// Readable when next_async_event() would return an event. Non-blocking; owned by the device.
    [[nodiscard]] virtual int async_fd() const noexcept = 0;
    /// An event that was taken must be acknowledged before its object is destroyed (H16).
    [[nodiscard]] virtual std::optional<ibv_async_event> next_async_event() = 0;
    virtual void acknowledge(const ibv_async_event& event) noexcept = 0;

    /// The device's own counts, of the whole device or of a QP; nothing if it does not count (H7).
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
        // EIO: the device was removed, and its objects with it.
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
