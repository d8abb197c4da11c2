// The software device: an RDMA device that is a data structure in this process.
//
// Its ibv_context has its own ops, so ibv_post_send, ibv_post_recv and ibv_poll_cq of <infiniband/verbs.h> work on its
// objects. The device is split into engines: one for each ThreadDomain, and one for objects that were made without a
// domain. A post only enqueues work. The engine does the work when one of its CQs is polled, when its channel is asked
// for an event, or in advance(). Devices of one process that name the same fabric reach each other.
//
// Thread safety: any thread may call the verbs and all functions of Device. Engines of different thread domains
// exchange packets only by links.
//
// Time: while a timer is armed, one poll in many reads the clock. The clock is also read for each time stamp of a
// completion, and on rare occasions such as an RNR NAK. advance() runs each timer exactly at its time.
//
// Where the specification leaves the behaviour open, the device behaves as follows:
//  - destroy() returns EBUSY for an object with events, asynchronous or of completions, that were taken and not
//    acknowledged. It does not wait as ibv_destroy_* does, because a single control thread could wait for ever. Events
//    of the object that nobody has taken are dropped.
//  - CQEs of a QP that was reset or destroyed stay in their CQ, unless the profile has purges_cqes.
//  - fields of a failed completion that the specification calls invalid hold garbage; vendor_err is
//    soft::vendor_err_of(status).
//  - a slot of a send or receive queue becomes free when its own completion, or that of a later slot, has been polled.
//  - a packet that waits because the peer's thread does not poll does not count as lost. While there is such a packet,
//    acknowledgement timers start over, for up to kHostPatienceNs.
//  - packets of UC and UD are not lost when the link to the other thread is full: they wait. They are lost, for
//  example,
//    if there is no receive, a key is wrong, the destination is unknown or a port is down.
//  - there are no end-to-end flow-control credits: a sender learns of a missing receive by the RNR NAK.
//  - an SRQ's receives are taken in the order in which they were posted. Each of their completions that is polled frees
//    one slot. All QPs of an SRQ must be in the SRQ's thread domain.
//  - a limit that is armed while an SRQ has fewer receives raises its event at once.
//  - the state SQD is not offered.
//  - a bind is checked against the memory window's key when the engine executes the bind. If a type 2 window is bound
//    to a QP, destroying the QP ends the binding.
//  - a send with invalidate whose key cannot be invalidated is acknowledged. Its receive fails with
//    IBV_WC_REM_INV_REQ_ERR, and the receiver's QP goes to ERR.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <infiniband/verbs.h>

#include "device/device.hpp"
#include "device/soft/faults.hpp"
#include "device/soft/profile.hpp"
#include "device/soft/verbs_ops.hpp"

namespace pollcore {

namespace soft {
class Engine;
class Fabric;
struct DeviceCore;
struct SoftMw;
}  // namespace soft

/// The default limits of a software device.
[[nodiscard]] DeviceLimits default_soft_limits() noexcept;

struct SoftDeviceOptions {
    std::string name = "soft0";
    /// Devices on one fabric reach each other.
    std::string fabric = "default";
    /// The clock: returns nanoseconds that never go back. If empty, std::chrono::steady_clock is used.
    std::function<std::uint64_t()> clock_ns = {};
    DeviceLimits limits = default_soft_limits();
    /// The largest number of memory regions and windows together.
    std::uint32_t memory_regions_max = 16384;
    ibv_mtu active_mtu = IBV_MTU_4096;
    SoftProfile profile = {};
    /// Faults that are given to inject() before anything else happens.
    std::vector<SoftFault> faults = {};
    /// Seed of the random numbers for SoftFault::probability.
    std::uint64_t fault_seed = 1;
};

class SoftDevice : public Device {
public:
    explicit SoftDevice(SoftDeviceOptions options);
    ~SoftDevice() override;

    /// Does all work that can be done up to `now_ns`, and runs each timer at its own time on the way.
    void advance(std::uint64_t now_ns);
    /// Takes the port down or up. While it is down, packets to and from this device are lost. The change raises
    /// IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE.
    void set_port_up(bool up);
    /// Simulates a failure of the hardware. From now on no work is done, and posts have no effect. Polls find only
    /// completions that are in the CQ already. Calls that make or change an object fail with EIO, but objects can be
    /// destroyed. Raises IBV_EVENT_DEVICE_FATAL. Clears the fault plan; faults that are injected later apply to the
    /// failed device.
    void fail();
    /// Simulates that the kernel removes the device. Like fail(), but destroying objects and arming CQs also fail with
    /// EIO, and so does taking an event when none waits. Objects for which destroy() was called are kept until the
    /// device is destroyed.
    void remove();
    [[nodiscard]] const std::string& fabric_name() const noexcept;

    /// Plans a fault. Throws pollcore::Error if the fault makes no sense.
    void inject(const SoftFault& fault);
    /// Drops all planned faults.
    void clear_faults();
    /// Returns how often planned faults of this kind have happened.
    [[nodiscard]] std::uint64_t faults_met(SoftFault::Kind kind) const noexcept;

    [[nodiscard]] std::string describe() const override;
    [[nodiscard]] bool is_software() const noexcept override { return true; }
    [[nodiscard]] ibv_context* context() noexcept override { return &context_; }
    [[nodiscard]] const DeviceLimits& limits() const noexcept override { return options_.limits; }
    [[nodiscard]] int numa_node() const noexcept override { return -1; }
    [[nodiscard]] ibv_device_attr_ex query_device() override;
    [[nodiscard]] ibv_port_attr query_port() override;
    [[nodiscard]] std::vector<GidEntry> gids() override;
    [[nodiscard]] std::uint16_t query_pkey(std::uint32_t index) override;

    [[nodiscard]] std::unique_ptr<ThreadDomain> create_thread_domain() override;
    [[nodiscard]] ibv_pd* create_pd() override;
    /// The engine of `domain` also does its work when the channel's next_event() is called.
    [[nodiscard]] std::unique_ptr<CompletionChannel> create_channel(ThreadDomain* domain) override;
    /// The CQ has exactly as many entries as `options` ask for.
    [[nodiscard]] ibv_cq* create_cq(const CqOptions& options) override;
    void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) override;
    [[nodiscard]] ibv_qp* create_qp(QpOptions& options) override;
    /// The SRQ has exactly the depth that `options` ask for.
    [[nodiscard]] ibv_srq* create_srq(SrqOptions& options) override;
    [[nodiscard]] ibv_mr* register_dmabuf(ibv_pd* pd, const DmabufRange& range, std::uint64_t iova,
                                          int access) override;
    [[nodiscard]] ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                          int access) override;
    [[nodiscard]] ibv_mw* create_mw(ibv_pd* pd, ibv_mw_type type) override;
    /// Makes the links by which datagrams reach all engines of the other device.
    [[nodiscard]] ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr& attr) override;
    [[nodiscard]] ibv_ah_attr way_back(ibv_wc& wc, ibv_grh& grh) override;
    void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) override;
    /// All attributes are filled in, whatever the mask.
    [[nodiscard]] ibv_qp_attr query(ibv_qp* qp, int mask) override;
    /// Accepts only IBV_SRQ_LIMIT. An SRQ cannot be resized.
    void modify(ibv_srq* srq, ibv_srq_attr& attr, int mask) override;
    [[nodiscard]] ibv_srq_attr query(ibv_srq* srq) override;
    [[nodiscard]] bool writes_in_order(ibv_qp* qp) override;

    int destroy(ibv_pd* pd) noexcept override;
    int destroy(ibv_ah* ah) noexcept override;
    int destroy(ibv_cq* cq) noexcept override;
    int destroy(ibv_qp* qp) noexcept override;
    /// Returns EBUSY while QPs use the SRQ. Receives that are still in the SRQ end without a completion.
    int destroy(ibv_srq* srq) noexcept override;
    /// When the call returns, the device no longer touches the region's memory. Returns EBUSY while windows are bound
    /// to the region.
    int destroy(ibv_mr* mr) noexcept override;
    int destroy(ibv_mw* window) noexcept override;

    [[nodiscard]] int async_fd() const noexcept override;
    [[nodiscard]] std::optional<ibv_async_event> next_async_event() override;
    void acknowledge(const ibv_async_event& event) noexcept override;

    [[nodiscard]] std::optional<RnrCounts> rnr_counts() override;
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(ibv_qp* qp) override;

private:
    /// Throws if the fault plan lets this call fail. The message begins with "cannot" and `what`.
    void meet_fault(SoftFault::Kind kind, std::string_view what, const ibv_qp* qp = nullptr,
                    std::optional<ibv_qp_state> state = std::nullopt);
    [[nodiscard]] std::shared_ptr<soft::Engine> engine_of(ThreadDomain* domain);
    [[nodiscard]] std::shared_ptr<soft::Engine> make_engine();
    [[nodiscard]] std::vector<std::shared_ptr<soft::Engine>> engines();
    /// Throws Error(EIO) when the device has failed. The caller holds the control mutex.
    void require_working(const char* what) const;
    /// Throws when `asked` is more than `has`.
    void require_within(std::string_view what, std::uint64_t asked, std::uint64_t has) const;
    [[nodiscard]] bool ended(const void* object) const noexcept;
    /// Frees a destroyed object, and returns 0. After remove(), keeps the object and returns EIO, because libibverbs
    /// keeps an object that the kernel refuses to destroy, and the caller may try again.
    template <class T>
    [[nodiscard]] int end(std::unique_ptr<T> object) noexcept {
        if (!removed_)
            return 0;
        orphans_.push_back(std::move(object));
        return EIO;
    }

    /// Waits until no engine uses a removed key any more.
    void settle_engines() noexcept;

    SoftDeviceOptions options_;
    ibv_device device_{};
    soft::SoftContext context_{};
    std::shared_ptr<soft::Fabric> fabric_;
    std::unique_ptr<soft::DeviceCore> core_;
    std::mutex control_mutex_;  ///< guards everything below, and the use counts of objects
    std::vector<std::weak_ptr<soft::Engine>> engines_;
    std::shared_ptr<soft::Engine> default_engine_;
    std::uint32_t qps_ = 0;
    std::vector<soft::SoftMw*> windows_;
    std::uint32_t srqs_ = 0;
    bool failed_ = false;
    bool removed_ = false;
    std::vector<std::shared_ptr<void>> orphans_;  ///< objects for which destroy() was called after remove()
};

/// Opens a software device. Throws pollcore::Error.
[[nodiscard]] std::unique_ptr<SoftDevice> open_soft_device(SoftDeviceOptions options);

}  // namespace pollcore
