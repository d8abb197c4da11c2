// The maker of sessions, queue pairs and memory: a Runtime in this process, or an Attachment to a daemon's. Both have
// these calls, so that a program may use either.
//
// Thread safety: every call here may be made from any thread, and blocks until it is done. None belongs on a hot path.
//
// Errors: pollcore::Error, whose message says what was tried, on what, and what to do. Error(ETIMEDOUT): the control
// thread hangs, and did not begin the call within the configuration's hang_limit; nothing was done. Calls and
// destructors that end something have no such limit. std::bad_alloc: nothing was made, and the call can be repeated
// (D29).
//
// Ownership: objects made here keep alive what they need, so they may be destroyed in any order. After stop() their
// calls throw Error(ESHUTDOWN); everything in flight has completed.
//
// fork(): objects that the parent has made stay the parent's. In the child every call throws Error(EPERM) at once, and
// destructors do nothing; the parent's sessions and memory must not be used there. A child may make an Attachment of
// its own, and a Runtime after exec() (execve(2)): DPDK's EAL shares its memory with the child, so a child of a process
// that had a Runtime gets Error(EPERM).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pollcore/address_handle.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/error.hpp"
#include "pollcore/event.hpp"
#include "pollcore/export.h"
#include "pollcore/listener.hpp"
#include "pollcore/memory.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/receive_pool.hpp"
#include "pollcore/report.hpp"
#include "pollcore/session.hpp"
#include "pollcore/shared_receive_queue.hpp"

namespace pollcore {

class ControlSide;

/// Makes sessions, queue pairs and memory; see the rules above. A program has a Runtime or an Attachment.
class POLLCORE_API Context {
public:
    /// Opens a session for one application thread. Throws Error(EINVAL) for options that are not accepted.
    [[nodiscard]] Session open_session(const SessionOptions& options = {});
    /// Makes a queue pair for the sessions in options.shares.
    [[nodiscard]] QueuePair create_queue_pair(const QueuePairOptions& options);
    /// Makes a shared receive queue for options.session.
    [[nodiscard]] SharedReceiveQueue create_shared_receive_queue(const SharedReceiveQueueOptions& options);
    /// Throws Error: EINVAL for options that are not accepted, ENOSPC when the session's pool_buffers have no room for
    /// so many buffers.
    [[nodiscard]] ReceivePool create_receive_pool(const ReceivePoolOptions& options);
    /// Throws as create_receive_pool, and Error(EOPNOTSUPP) where the session's worker may sleep, since nothing would
    /// wake it for a message.
    [[nodiscard]] ReceivePool create_write_ring(const WriteRingOptions& options);
    [[nodiscard]] ProtectionDomain create_protection_domain(const std::string& device = "");

    /// Allocates and registers memory: zeroed, cache-line aligned, on the device's NUMA node, and from hugepages where
    /// there are any. A peer with its remote key may do what both `access` and QueuePairOptions::remote_access allow.
    [[nodiscard]] MemoryRegion allocate(std::size_t bytes, Access access, const std::string& device = "",
                                        const ProtectionDomain* pd = nullptr);
    /// Registers memory that the program has; it must stay mapped until the region is deregistered.
    [[nodiscard]] MemoryRegion register_memory(void* data, std::size_t bytes, Access access,
                                               const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// Registers memory with an address of the program's choice for the first byte, `iova` (ibv_reg_mr_iova(3)). Peers
    /// and work requests use that address; with 0, addresses are offsets. On verbs devices `iova` and `data` must be
    /// equal modulo the page size.
    [[nodiscard]] MemoryRegion register_memory_at(std::uint64_t iova, void* data, std::size_t bytes, Access access,
                                                  const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// A window for queue pairs of the session's worker. Throws Error(EOPNOTSUPP) where the device has no windows of
    /// the type.
    [[nodiscard]] MemoryWindow create_memory_window(const Session& session, WindowType type = WindowType::type_2,
                                                    const std::string& device = "",
                                                    const ProtectionDomain* pd = nullptr);

    /// The way of datagrams to the queue pair that `peer` describes, and to others of its port. Only service level,
    /// traffic class, flow label and hop limit of `path` count.
    [[nodiscard]] AddressHandle create_address_handle(const QpInfo& peer, const PathAttributes& path = {},
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);
    /// The way back to the sender of a datagram, whose queue pair is received.src_qp. `buffer` is the receive's buffer;
    /// only its first kGrhBytes are read. Throws Error(EINVAL) when the message does not say where it is from.
    [[nodiscard]] AddressHandle create_address_handle(const WideCompletion& received, std::span<const std::byte> buffer,
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);

    /// Listens at "ADDRESS:PORT" on a verbs device (port 0: any), at a name on a software device.
    [[nodiscard]] Listener listen(const std::string& address, const std::string& device = "");

    /// The oldest asynchronous event of a device, after the runtime has reacted to it; nothing when none came within
    /// the time. At most kEventsMax events wait: the oldest are kept, later ones only counted (Event::lost_after,
    /// ControlCounters::events_lost). An application may leave events untaken: nothing else depends on them. Unlike
    /// other calls, this one and poll_event() do not wait for the control thread. When the runtime is stopped they give
    /// the events that are left, and then throw Error(ESHUTDOWN).
    [[nodiscard]] std::optional<Event> next_event(std::chrono::milliseconds timeout);
    /// next_event() without waiting.
    [[nodiscard]] std::optional<Event> poll_event();
    /// A descriptor for a program's own poll or epoll, level-triggered: readable while poll_event() has something to
    /// give, and forever once the runtime is stopped. The runtime owns it, and it lives as long as the runtime. Do not
    /// read it.
    [[nodiscard]] int event_fd() const;

    [[nodiscard]] RuntimeReport report() const;
    [[nodiscard]] std::size_t worker_count() const noexcept;
    /// The counters of a worker. Those of a Runtime go on counting; those of an Attachment are a copy made by this
    /// call, which the next call for the same worker changes.
    [[nodiscard]] const WorkerCounters& worker_counters(std::size_t worker) const;
    [[nodiscard]] const ControlCounters& control_counters() const;
    /// RNR NAKs of a whole device, with all its users; for a verbs device from its hardware counters. Nothing where it
    /// has no such counters.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(const std::string& device = "") const;

    /// False when this was default-constructed or moved from.
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

protected:
    Context() = default;
    POLLCORE_INTERNAL explicit Context(std::shared_ptr<ControlSide> control) noexcept;
    Context(Context&&) noexcept = default;
    Context& operator=(Context&&) noexcept = default;
    ~Context() = default;

    [[nodiscard]] const std::shared_ptr<ControlSide>& control_side() const noexcept { return control_; }
    /// Throws Error(EINVAL) when there is none.
    [[nodiscard]] POLLCORE_INTERNAL ControlSide& control() const;

private:
    std::shared_ptr<ControlSide> control_;
};

}  // namespace pollcore
