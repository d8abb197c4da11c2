// A device of libibverbs: a NIC, or the kernel's Soft-RoCE.
//
// Thread safety: like Device, for one control thread at a time.
// Invariants: the context is open as long as the object lives. Each parent domain belongs to one thread domain and one
// PD, and is deallocated with the first of the two that is destroyed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include "device/device.hpp"

namespace pollcore {

class VerbsThreadDomain;

class VerbsDevice final : public Device {
public:
    /// Opens the device of this name, as ibv_devices(1) prints it. An empty name means the only device. Throws
    /// pollcore::Error, which lists the existing devices or says why there are none.
    /// With `to_share`, share() may be called.
    [[nodiscard]] static std::unique_ptr<VerbsDevice> open(const std::string& name, std::uint8_t port,
                                                           bool to_share = false);
    ~VerbsDevice() override;

    [[nodiscard]] std::string describe() const override;
    [[nodiscard]] bool is_software() const noexcept override { return false; }
    [[nodiscard]] bool has_kernel() const noexcept override;
    [[nodiscard]] ibv_context* context() noexcept override { return context_.get(); }
    [[nodiscard]] const DeviceLimits& limits() const noexcept override { return limits_; }
    [[nodiscard]] int numa_node() const noexcept override { return numa_node_; }

    [[nodiscard]] ibv_device_attr_ex query_device() override;
    [[nodiscard]] ibv_port_attr query_port() override;
    [[nodiscard]] std::vector<GidEntry> gids() override;
    [[nodiscard]] std::uint16_t query_pkey(std::uint32_t index) override;

    [[nodiscard]] std::optional<SharedContext> share() override;
    void let_go() noexcept override { let_go_ = true; }
    [[nodiscard]] bool abused() const noexcept override { return abused_; }
    [[nodiscard]] bool must_stay() const noexcept override { return held_up_; }

    [[nodiscard]] std::unique_ptr<ThreadDomain> create_thread_domain() override;
    [[nodiscard]] ibv_pd* create_pd() override;
    [[nodiscard]] std::unique_ptr<CompletionChannel> create_channel(ThreadDomain* domain) override;
    [[nodiscard]] ibv_cq* create_cq(const CqOptions& options) override;
    void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_us) override;
    [[nodiscard]] ibv_qp* create_qp(QpOptions& options) override;
    [[nodiscard]] SendQueueLines send_queue_lines(ibv_qp* qp) override;
    [[nodiscard]] ibv_srq* create_srq(SrqOptions& options) override;
    [[nodiscard]] ibv_mr* register_dmabuf(ibv_pd* pd, const DmabufRange& range, std::uint64_t iova,
                                          int access) override;
    [[nodiscard]] ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                          int access) override;
    [[nodiscard]] ibv_mw* create_mw(ibv_pd* pd, ibv_mw_type type) override;
    [[nodiscard]] ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr& attr) override;
    /// Makes an address handle and destroys it. Making it resolves the destination on the network.
    void find_neighbour(ibv_pd* pd, ibv_ah_attr& attr) override;
    [[nodiscard]] ibv_ah_attr way_back(ibv_wc& wc, ibv_grh& grh) override;
    void modify(ibv_qp* qp, ibv_qp_attr& attr, int mask) override;
    ibv_qp_attr query(ibv_qp* qp, int mask) override;
    void modify(ibv_srq* srq, ibv_srq_attr& attr, int mask) override;
    ibv_srq_attr query(ibv_srq* srq) override;
    bool writes_in_order(ibv_qp* qp) override;

    int destroy(ibv_pd* pd) noexcept override;
    int destroy(ibv_ah* ah) noexcept override;
    int destroy(ibv_cq* cq) noexcept override;
    int destroy(ibv_qp* qp) noexcept override;
    int destroy(ibv_srq* srq) noexcept override;
    int destroy(ibv_mr* mr) noexcept override;
    [[nodiscard]] bool close_off(ibv_mr* mr) noexcept override;
    int destroy(ibv_mw* window) noexcept override;

    [[nodiscard]] int async_fd() const noexcept override { return context_->async_fd; }
    [[nodiscard]] std::optional<ibv_async_event> next_async_event() override;
    void acknowledge(const ibv_async_event& event) noexcept override;

    /// Returns the port's hardware counters. The kernel may have read them a little earlier (up to their "lifespan").
    [[nodiscard]] std::optional<RnrCounts> rnr_counts() override;
    /// Returns nothing: verbs have no RNR counters of a single QP.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(ibv_qp*) override { return std::nullopt; }

private:
    friend class VerbsThreadDomain;
    struct ContextCloser {
        void operator()(ibv_context* context) const noexcept { (void)ibv_close_device(context); }
    };
    using UniqueContext = std::unique_ptr<ibv_context, ContextCloser>;

    VerbsDevice(UniqueContext context, std::uint8_t port);

    void query_limits();
    void check_port();
    /// Finds out inline_max, thread_domains and extended_cqs of limits_ by making objects, because verbs have no query
    /// for them. Also tries whether a CQ can have the time stamps that the device claims to have.
    void probe();
    [[nodiscard]] std::uint32_t probe_inline_max(ibv_pd* pd, ibv_cq* cq);
    [[nodiscard]] bool probe_thread_domains(ibv_pd* pd);
    [[nodiscard]] bool probe_extended_cqs(bool device_time);

    void check_cap(const ibv_qp_cap& cap) const;
    [[nodiscard]] VerbsThreadDomain& own(ThreadDomain& domain) const;
    /// Returns null and sets errno when the device cannot make the CQ.
    [[nodiscard]] ibv_cq* create_extended_cq(const CqOptions& options);

    [[nodiscard]] ibv_qp* create_untouching_qp(ibv_pd* pd, ibv_qp_init_attr& attr);

    /// Throws Error if this device takes no region of these properties. `place` is the region's place in memory.
    void check_region(std::uint64_t place, std::size_t length, std::uint64_t iova, int access) const;
    /// The result of destroy(). `error` is what the provider has returned.
    [[nodiscard]] int destroyed(int error) noexcept;
    /// Destroys an object whose end the provider delays until all its events are acknowledged. If the context is
    /// shared, another process decides how many there are. So another thread makes the call then, and this thread does
    /// not wait for it for ever.
    template <class Object>
    [[nodiscard]] int destroy_in_time(int (*how)(Object*), Object* object) noexcept;

    UniqueContext context_;
    bool shared_ = false;  // share() was called
    bool let_go_ = false;  // let_go() was called
    bool abused_ = false;
    bool held_up_ = false;
    DeviceLimits limits_;
    int numa_node_ = -1;
    std::string firmware_;
    /// The existing thread domains. Each adds and removes itself.
    std::vector<VerbsThreadDomain*> domains_;
    /// The PD from which the parent domains of CQs are made, because a CQ has no PD of its own. Made when first needed.
    ibv_pd* cq_pd_ = nullptr;
};

}  // namespace pollcore
