// The software device: an RDMA device that is a data structure in this process.
//
// Its ibv_context has ops of its own, so ibv_post_send, ibv_post_recv and ibv_poll_cq of
// <infiniband/verbs.h> work on its objects. It is split into engines, one per ThreadDomain and one for
// objects made without: a post only enqueues, and an engine moves its work when one of its CQs is polled, or
// in advance(). Devices of one process that name the same fabric reach each other.
//
// Thread safety: the verbs and all calls of Device from any thread. Threads that use different thread
// domains share nothing but the links between them.
// Time: the clock is read only while a timer is armed, and then once in many polls, and for each completion that has a
// time stamp; advance() steps through the timers exactly. Where the device decides what the specification leaves open:
//  - destroy() of an object with events, asynchronous or of completions, that were taken and not acknowledged returns
//  EBUSY
//    (ibv_destroy_* would wait, which a single control thread could do for ever); events of it that nobody
//    has taken are dropped.
//  - CQEs of a QP that was reset or destroyed stay in their CQ, unless the profile says otherwise.
//  - what a failed completion leaves invalid is garbage; vendor_err is soft::vendor_err_of(status).
//  - a slot of a send or receive queue is free again when a completion at or behind it was polled.
//  - a packet that waits because the peer's thread does not poll is not a lost packet: acknowledgement
//    timers start over while there is one, for up to kHostPatienceNs.
//  - what UC and UD send waits while the link to the other thread is full; only a missing receive, a wrong key, an
//    unknown destination or a port that is down lose it.
//  - no end-to-end flow-control credits: a sender learns of a missing receive by the RNR NAK.
//  - an SRQ's receives are taken in the order they were posted, and a slot of it is free again when a completion of
//    any of them was polled; an SRQ is used by QPs of one thread domain.
//  - a limit that is armed above what an SRQ holds raises its event at once.
//  - SQD is not offered.
//  - a memory window is bound by the key that it has when its turn comes; destroying the QP that a type 2 window is
//    bound to ends the binding.
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
    /// As if given to inject() before anything else.
    std::vector<SoftFault> faults = {};
    /// Of what the faults leave to chance.
    std::uint64_t fault_seed = 1;
};

class SoftDevice : public Device {
public:
    explicit SoftDevice(SoftDeviceOptions options);
    ~SoftDevice() override;

    /// Does everything that can be done up to `now_ns`, running each timer at its own time on the way.
    void advance(std::uint64_t now_ns);
    /// Takes the port down or up. While it is down packets to and from this device are lost; the change
    /// raises IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE.
    void set_port_up(bool up);
    /// The hardware fails: nothing moves any more, posts go nowhere, polls find only what stood in the CQ, calls that
    /// make or change something fail with EIO. Destroying works. Raises IBV_EVENT_DEVICE_FATAL. The fault plan is
    /// cleared; what is injected from here on concerns a device that has failed.
    void fail();
    /// The kernel lets go of the device: as fail(), and then destroying, arming CQs and taking events fail with EIO
    /// too. What destroy() was called for ends with the device.
    void remove();
    [[nodiscard]] const std::string& fabric_name() const noexcept;

    /// Plans a fault. Throws pollcore::Error for one that makes no sense.
    void inject(const SoftFault& fault);
    /// Nothing more of what was planned happens.
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
    /// The engine of this domain moves when next_event() is asked, too.
    [[nodiscard]] std::unique_ptr<CompletionChannel> create_channel(ThreadDomain* domain) override;
    /// The CQ has exactly the entries that were asked for.
    [[nodiscard]] ibv_cq* create_cq(const CqOptions& options) override;
    void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) override;
    [[nodiscard]] ibv_qp* create_qp(QpOptions& options) override;
    /// Has exactly the depth that was asked for.
    [[nodiscard]] ibv_srq* create_srq(SrqOptions& options) override;
    [[nodiscard]] ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                          int access) override;
    [[nodiscard]] ibv_mw* create_mw(ibv_pd* pd, ibv_mw_type type) override;
    /// Opens the way for datagrams to all of the other device's engines.
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
    /// EBUSY while QPs use it. What is left in it ends without a completion.
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
    /// libibverbs keeps an object whose destruction the kernel refused, and may be asked again; here the device keeps
    /// it.
    template <class T>
    [[nodiscard]] int end(std::unique_ptr<T> object) noexcept {
        if (!removed_)
            return 0;
        orphans_.push_back(std::move(object));
        return EIO;
    }

    /// Waits until no engine uses a key any more that was removed before.
    void settle_engines() noexcept;

    SoftDeviceOptions options_;
    ibv_device device_{};
    soft::SoftContext context_{};
    std::shared_ptr<soft::Fabric> fabric_;
    std::unique_ptr<soft::DeviceCore> core_;
    std::mutex control_mutex_;  ///< of everything below, and of use counts
    std::vector<std::weak_ptr<soft::Engine>> engines_;
    std::shared_ptr<soft::Engine> default_engine_;
    std::uint32_t qps_ = 0;
    std::vector<soft::SoftMw*> windows_;
    std::uint32_t srqs_ = 0;
    bool failed_ = false;
    bool removed_ = false;
    std::vector<std::shared_ptr<void>> orphans_;  ///< of a removed device
};

/// Opens a software device. Throws pollcore::Error.
[[nodiscard]] std::unique_ptr<SoftDevice> open_soft_device(SoftDeviceOptions options);

}  // namespace pollcore
