// What everything is made by: sessions, queue pairs, memory. A Runtime, in this process, or an Attachment to a
// daemon's: the same calls, so that a program may take either.
//
// Thread safety: every call here may be made from any thread, and blocks until it is done. None belongs on a hot path.
// Errors: pollcore::Error, with a message that says what was tried, on what, and what to do. ETIMEDOUT: the control
// thread hangs, and did not begin with the call within the configuration's hang_limit; nothing was done. Calls and
// destructors that end something have no such limit. And std::bad_alloc; then what the call was to make is not there,
// and it can be made again. Ownership: objects made here keep what they need alive, so they may be destroyed in any
// order. After stop() their calls throw Error(ESHUTDOWN); what was in flight has been completed. fork(): what the
// parent has made stays the parent's. In the child every call throws Error(EPERM) at once, and destructors do nothing;
// its sessions and memory are not to be used there. A child may make an Attachment of its own, and a Runtime after
// exec() (execve(2)): DPDK's EAL shares its memory with the child, so a child of a process that had a Runtime gets
// Error(EPERM).
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

class POLLCORE_API Context {
public:
    [[nodiscard]] Session open_session(const SessionOptions& options = {});
    [[nodiscard]] QueuePair create_queue_pair(const QueuePairOptions& options);
    [[nodiscard]] SharedReceiveQueue create_shared_receive_queue(const SharedReceiveQueueOptions& options);
    /// Throws Error: EINVAL for what ReceivePoolOptions does not accept, ENOSPC when the session has no room for so
    /// many.
    [[nodiscard]] ReceivePool create_receive_pool(const ReceivePoolOptions& options);
    /// As create_receive_pool; and EOPNOTSUPP where the session's worker may sleep, since nothing would wake it for a
    /// message.
    [[nodiscard]] ReceivePool create_write_ring(const WriteRingOptions& options);
    [[nodiscard]] ProtectionDomain create_protection_domain(const std::string& device = "");

    /// Memory from hugepages where there are any (zeroed, cache-line aligned, on the device's NUMA node), registered.
    /// Peers reach it with its remote key as far as `access`, and the queue pair by which they come, allow.
    [[nodiscard]] MemoryRegion allocate(std::size_t bytes, Access access, const std::string& device = "",
                                        const ProtectionDomain* pd = nullptr);
    /// Registers memory that the program has; it must stay mapped until the region is deregistered.
    [[nodiscard]] MemoryRegion register_memory(void* data, std::size_t bytes, Access access,
                                               const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// The same, with an address of the program's choice for the first byte (ibv_reg_mr_iova(3)): peers and work
    /// requests use that; 0 makes offsets of addresses. On verbs devices both must have the same place within a page.
    [[nodiscard]] MemoryRegion register_memory_at(std::uint64_t iova, void* data, std::size_t bytes, Access access,
                                                  const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// A window for queue pairs of the session's worker. Throws Error(EOPNOTSUPP) where the device has none of the
    /// type.
    [[nodiscard]] MemoryWindow create_memory_window(const Session& session, WindowType type = WindowType::type_2,
                                                    const std::string& device = "",
                                                    const ProtectionDomain* pd = nullptr);

    /// The way of datagrams to the queue pair that `peer` describes, and to others of its port. Of the path the service
    /// level, traffic class, flow label and hop limit count.
    [[nodiscard]] AddressHandle create_address_handle(const QpInfo& peer, const PathAttributes& path = {},
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);
    /// The way back to the sender of a datagram, whose queue pair is received.src_qp. `buffer` is what the receive
    /// took, of which the first kGrhBytes count. Throws Error(EINVAL) where the message does not say where it is from.
    [[nodiscard]] AddressHandle create_address_handle(const WideCompletion& received, std::span<const std::byte> buffer,
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);

    /// "ADDRESS:PORT" on a verbs device (port 0: any), a name on a software device.
    [[nodiscard]] Listener listen(const std::string& address, const std::string& device = "");

    /// What devices said unasked, oldest first, after the runtime has done what follows from it; nothing when none came
    /// within the time. At most kEventsMax wait: then the oldest are kept, later ones are counted (Event::lost_after,
    /// ControlCounters::events_lost). Taking them is the application's choice: nothing else depends on it. Unlike the
    /// other calls these do not wait for the control thread. When the runtime is stopped they give what is left, and
    /// then throw Error(ESHUTDOWN).
    [[nodiscard]] std::optional<Event> next_event(std::chrono::milliseconds timeout);
    [[nodiscard]] std::optional<Event> poll_event();
    /// For a program's own poll or epoll, level-triggered: readable while poll_event() has something to give, and for
    /// good once the runtime is stopped. It stays the runtime's and lives as long; nobody reads it.
    [[nodiscard]] int event_fd() const;

    [[nodiscard]] RuntimeReport report() const;
    [[nodiscard]] std::size_t worker_count() const noexcept;
    /// Of a Runtime they go on counting; of an Attachment they are as of this call, and the next call on the same
    /// worker changes them.
    [[nodiscard]] const WorkerCounters& worker_counters(std::size_t worker) const;
    [[nodiscard]] const ControlCounters& control_counters() const;
    /// Of a whole device, by all who use it; for a verbs device from its hardware counters. Nothing where it has none.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(const std::string& device = "") const;

    /// Whether this names anything: not when it was default-constructed or moved from.
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

protected:
    Context() = default;
    POLLCORE_INTERNAL explicit Context(std::shared_ptr<ControlSide> control) noexcept;
    Context(Context&&) noexcept = default;
    Context& operator=(Context&&) noexcept = default;
    ~Context() = default;

    [[nodiscard]] const std::shared_ptr<ControlSide>& control_side() const noexcept { return control_; }
    /// Throws Error(EINVAL) where there is none.
    [[nodiscard]] POLLCORE_INTERNAL ControlSide& control() const;

private:
    std::shared_ptr<ControlSide> control_;
};

}  // namespace pollcore
