// The software device: an RDMA device that is a data structure in this process.
//
// Its ibv_context has ops of its own, so ibv_post_send, ibv_post_recv and ibv_poll_cq of
// <infiniband/verbs.h> work on its objects. It is split into engines, one per ThreadDomain and one for
// objects made without a domain. A post only enqueues; an engine moves its work when one of its CQs is polled, or
// in advance(). Devices of one process that name the same fabric reach each other.
//
// Thread safety: the verbs and all calls of Device from any thread. Threads that use different thread
// domains share nothing but the links between them.
//
// Time: the clock is read once in many polls while a timer is armed, and for each completion that has a time stamp.
// advance() steps through the timers exactly.
//
// Where the specification leaves something open, the device does this:
//  - destroy() returns EBUSY for an object with events, asynchronous or of completions, that were taken and not
//    acknowledged. (ibv_destroy_* would wait, and a single control thread could wait for ever.) Events of the object
//    that nobody has taken are dropped.
//  - CQEs of a QP that was reset or destroyed stay in their CQ, unless the profile says otherwise.
//  - fields that are invalid in a failed completion are garbage; vendor_err is soft::vendor_err_of(status).
//  - a slot of a send or receive queue is free again when a completion at or behind it was polled.
//  - a packet that waits because the peer's thread does not poll does not count as lost: acknowledgement timers start
//    over while there is such a packet, for up to kHostPatienceNs.
//  - packets of UC and UD wait while the link to the other thread is full; they are lost only by a missing receive, a
//    wrong key, an unknown destination or a port that is down.
//  - no end-to-end flow-control credits: a sender learns of a missing receive by the RNR NAK.
//  - an SRQ's receives are taken in the order in which they were posted. One slot is free again for each of their
//    completions that was polled. Only QPs of one thread domain use an SRQ.
//  - a limit that is armed above the number of receives in an SRQ raises its event at once.
//  - SQD is not offered.
//  - a bind uses the key that the memory window has when the bind's turn comes. Destroying the QP that a type 2 window
//    is bound to ends the binding.
//  - a send with invalidate whose key cannot be invalidated is acknowledged; its receive fails with
//    IBV_WC_REM_INV_REQ_ERR and its receiver's QP goes to ERR.
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

/// What a software device can do unless told otherwise.
[[nodiscard]] DeviceLimits default_soft_limits() noexcept;

struct SoftDeviceOptions {
    std::string name = "soft0";
    /// Devices on one fabric reach each other.
    std::string fabric = "default";
    /// Nanoseconds that never go back. Empty: std::chrono::steady_clock.
    std::function<std::uint64_t()> clock_ns = {};
    DeviceLimits limits = default_soft_limits();
    /// Regions and windows together.
    std::uint32_t memory_regions_max = 16384;
    ibv_mtu active_mtu = IBV_MTU_4096;
    SoftProfile profile = {};
    /// Given to inject() before anything else happens.
    std::vector<SoftFault> faults = {};
    /// Seed for what the faults leave to chance.
    std::uint64_t fault_seed = 1;
};

class SoftDevice : public Device {
public:
    explicit SoftDevice(SoftDeviceOptions options);
    ~SoftDevice() override;

    /// Does everything that can be done up to `now_ns`, running each timer at its own time on the way.
    void advance(std::uint64_t now_ns);
    /// Takes the port down or up. While it is down, packets to and from this device are lost. The change raises
    /// IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE.
    void set_port_up(bool up);
    /// The hardware fails: nothing moves any more, posts go nowhere, polls find only completions that are in the CQ
    /// already, and calls that make or change something fail with EIO. Destroying works. Raises IBV_EVENT_DEVICE_FATAL.
    /// Clears the fault plan; faults injected from here on concern a device that has failed.
    void fail();
    /// The kernel lets go of the device: like fail(), but destroying, arming CQs and taking events fail with EIO, too.
    /// Objects that destroy() was called for end with the device.
    void remove();
    [[nodiscard]] const std::string& fabric_name() const noexcept;

    /// Plans a fault. Throws pollcore::Error for one that makes no sense.
    void inject(const SoftFault& fault);
    /// Drops all planned faults.
    void clear_faults();
    /// How often a planned fault of this kind happened.
    [[nodiscard]] std::uint64_t faults_met(SoftFault::Kind kind) const noexcept;

    [[nodiscard]] std::string describe() const override;
    [[nodiscard]] bool is_software() const noexcept override { return true; }
    [[nodiscard]] ibv_context* context() noexcept override { return &context_; }
    [[nodiscard]] const DeviceLimits& limits() const noexcept override { return options_.limits; }
    [[nodiscard]] int numa_node() const noexcept override { return -1; }
    [[nodiscard]] ibv_port_attr query_port() override;
    [[nodiscard]] std::vector<GidEntry> gids() override;

    [[nodiscard]] std::unique_ptr<ThreadDomain> create_thread_domain() override;
    [[nodiscard]] ibv_pd* create_pd() override;
    /// The engine of this domain moves when next_event() is called, too.
    [[nodiscard]] std::unique_ptr<CompletionChannel> create_channel(ThreadDomain* domain) override;
    /// The CQ has exactly as many entries as were asked for.
    [[nodiscard]] ibv_cq* create_cq(const CqOptions& options) override;
    void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) override;
    [[nodiscard]] ibv_qp* create_qp(QpOptions& options) override;
    /// The SRQ has exactly the depth that was asked for.
    [[nodiscard]] ibv_srq* create_srq(SrqOptions& options) override;
    [[nodiscard]] ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                          int access) override;
    [[nodiscard]] ibv_mw* create_mw(ibv_pd* pd, ibv_mw_type type) override;
    /// Opens the way for datagrams to all engines of the other device.
    [[nodiscard]] ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr& attr) override;
    [[nodiscard]] ibv_ah_attr way_back(ibv_wc& wc, ibv_grh& grh) override;
    void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) override;
    /// All attributes are filled in, whatever the mask.
    [[nodiscard]] ibv_qp_attr query(ibv_qp* qp, int mask) override;
    /// Takes IBV_SRQ_LIMIT; an SRQ is not resized.
    void modify(ibv_srq* srq, ibv_srq_attr& attr, int mask) override;
    [[nodiscard]] ibv_srq_attr query(ibv_srq* srq) override;
    [[nodiscard]] bool writes_in_order(ibv_qp* qp) override;

    int destroy(ibv_pd* pd) noexcept override;
    int destroy(ibv_ah* ah) noexcept override;
    int destroy(ibv_cq* cq) noexcept override;
    int destroy(ibv_qp* qp) noexcept override;
    /// EBUSY while QPs use it. Receives that are left in it end without a completion.
    int destroy(ibv_srq* srq) noexcept override;
    /// When it returns, nothing of the device touches the memory any more. EBUSY while windows are bound to it.
    int destroy(ibv_mr* mr) noexcept override;
    int destroy(ibv_mw* window) noexcept override;

    [[nodiscard]] int async_fd() const noexcept override;
    [[nodiscard]] std::optional<ibv_async_event> next_async_event() override;
    void acknowledge(const ibv_async_event& event) noexcept override;

    [[nodiscard]] std::optional<RnrCounts> rnr_counts() override;
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(ibv_qp* qp) override;

private:
    /// Throws if the fault plan has this call fail. `what` completes "cannot ...".
    void meet_fault(SoftFault::Kind kind, std::string_view what, const ibv_qp* qp = nullptr,
                    std::optional<ibv_qp_state> state = std::nullopt);
    [[nodiscard]] std::shared_ptr<soft::Engine> engine_of(ThreadDomain* domain);
    [[nodiscard]] std::shared_ptr<soft::Engine> make_engine();
    [[nodiscard]] std::vector<std::shared_ptr<soft::Engine>> engines();
    /// Throws Error(EIO) when the device has failed. Under the control mutex.
    void require_working(const char* what) const;
    /// Throws when more is asked for than the device has.
    void require_within(std::string_view what, std::uint64_t asked, std::uint64_t has) const;
    [[nodiscard]] bool ended(const void* object) const noexcept;
    /// If the kernel refuses to destroy an object, libibverbs keeps it, and the caller may ask again. Here a removed
    /// device keeps such objects.
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
    std::mutex control_mutex_;  ///< guards everything below, and use counts
    std::vector<std::weak_ptr<soft::Engine>> engines_;
    std::shared_ptr<soft::Engine> default_engine_;
    std::uint32_t qps_ = 0;
    std::vector<soft::SoftMw*> windows_;
    std::uint32_t srqs_ = 0;
    bool failed_ = false;
    bool removed_ = false;
    std::vector<std::shared_ptr<void>> orphans_;  ///< objects of a removed device
};

/// Opens a software device. Throws pollcore::Error.
[[nodiscard]] std::unique_ptr<SoftDevice> open_soft_device(SoftDeviceOptions options);

}  // namespace pollcore
