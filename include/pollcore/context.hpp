// A Context makes sessions, queue pairs and memory. It is a Runtime in this process, or an Attachment to the runtime of
// a daemon. Both have the calls below, so that a program may use either.
//
// Thread safety: any thread may make any call here, except create_send_pool(). A call blocks until it is done, so no
// call belongs on a hot path.
//
// Errors: calls throw pollcore::Error. The message names the action, its object and the remedy. In a Runtime,
// Error(ETIMEDOUT) means that the control thread, which carries out the calls, hangs. The call has then not begun
// within the configuration's hang_limit, and has no effect. Calls and destructors that end something have no such
// limit. QueuePair::connect and calls of an Attachment have time-outs of their own (AttachOptions::answer_within).
// std::bad_alloc means that nothing was made; the call can be repeated (D29).
//
// Ownership: objects made here keep alive the objects that they need, so they may be destroyed in any order. After
// stop(), all requests in flight have completed. Calls of these objects then throw Error(ESHUTDOWN), except for calls
// that end an object.
//
// fork(): objects that the parent has made still belong to the parent. In the child, calls of these objects throw
// Error(EPERM) at once, and their destructors do nothing. The child must not use the parent's sessions and memory. A
// child may make an Attachment of its own. If the parent has had a Runtime, the child can make one only after exec()
// (execve(2)), because DPDK's EAL shares its memory with the child. Before exec(), making one throws Error(EPERM).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pollcore/address_handle.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/device_attributes.hpp"
#include "pollcore/error.hpp"
#include "pollcore/event.hpp"
#include "pollcore/export.h"
#include "pollcore/listener.hpp"
#include "pollcore/memory.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/receive_pool.hpp"
#include "pollcore/report.hpp"
#include "pollcore/send_pool.hpp"
#include "pollcore/session.hpp"
#include "pollcore/shared_receive_queue.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore {

class ControlSide;

/// Makes sessions, queue pairs and memory; see the rules above. A program uses a Runtime or an Attachment.
class POLLCORE_API Context {
public:
    /// Opens a session for one application thread. Throws Error(EINVAL) for options that are not accepted.
    [[nodiscard]] Session open_session(const SessionOptions& options = {});
    /// Makes a queue pair for the sessions in options.shares.
    [[nodiscard]] QueuePair create_queue_pair(const QueuePairOptions& options);
    /// Makes a shared receive queue for options.session.
    [[nodiscard]] SharedReceiveQueue create_shared_receive_queue(const SharedReceiveQueueOptions& options);
    /// Throws Error: EINVAL for options that are not accepted, ENOSPC when the session's pool_buffers have no room for
    /// so many buffers, or when the runtime has kReceivePoolsMax pools.
    [[nodiscard]] ReceivePool create_receive_pool(const ReceivePoolOptions& options);
    /// Throws as create_receive_pool. Also throws Error(EOPNOTSUPP) if the session's worker may sleep, because a
    /// message in a write ring would not wake the worker.
    [[nodiscard]] ReceivePool create_write_ring(const WriteRingOptions& options);
    /// Called by the thread that uses options.session. Throws Error(EINVAL) for options that are not accepted.
    [[nodiscard]] SendPool create_send_pool(const SendPoolOptions& options);
    [[nodiscard]] ProtectionDomain create_protection_domain(const std::string& device = "");

    /// Allocates and registers memory: zeroed, cache-line aligned, and from hugepages if that is possible. A Runtime
    /// takes the memory on the device's NUMA node. A peer that has the remote key may do the operations that both
    /// `access` and QueuePairOptions::remote_access allow.
    [[nodiscard]] MemoryRegion allocate(std::size_t bytes, Access access, const std::string& device = "",
                                        const ProtectionDomain* pd = nullptr);
    /// Registers memory of the program. The memory must stay mapped until the region is deregistered. An attached
    /// process needs AttachOptions::own_memory for it, which has rules of its own.
    [[nodiscard]] MemoryRegion register_memory(void* data, std::size_t bytes, Access access,
                                               const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// Registers memory under another address (ibv_reg_mr_iova(3)): `iova` is the address by which peers and work
    /// requests name the first byte. With 0, their addresses are offsets. On verbs devices `iova` and `data` must be
    /// equal modulo the page size.
    [[nodiscard]] MemoryRegion register_memory_at(std::uint64_t iova, void* data, std::size_t bytes, Access access,
                                                  const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// Registers a range of a dma-buf (ibv_reg_dmabuf_mr(3)). `iova` is the address by which peers and work requests
    /// name its first byte; `iova` and range.offset must be equal modulo the page size. The bytes of such memory cannot
    /// be sent inline. Throws Error(EOPNOTSUPP) if the device takes none: the software device, Soft-RoCE, and every
    /// device of an attached process without AttachOptions::own_memory.
    [[nodiscard]] MemoryRegion register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access,
                                               const std::string& device = "", const ProtectionDomain* pd = nullptr);
    /// Makes a window for queue pairs of the session's worker. Throws Error(EOPNOTSUPP) if the device has no windows of
    /// this type.
    [[nodiscard]] MemoryWindow create_memory_window(const Session& session, WindowType type = WindowType::type_2,
                                                    const std::string& device = "",
                                                    const ProtectionDomain* pd = nullptr);

    /// Makes an address handle for datagrams to the queue pair that `peer` describes, and to other queue pairs at the
    /// same port. This call uses only service level, traffic class, flow label and hop limit of `path`.
    [[nodiscard]] AddressHandle create_address_handle(const QpInfo& peer, const PathAttributes& path = {},
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);
    /// Makes an address handle by the attributes of ibv_create_ah(3). Throws Error(EINVAL) for another port than that
    /// of the configuration, and the device's error.
    [[nodiscard]] AddressHandle create_address_handle(const AddressAttributes& address, const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);
    /// Makes an address handle for answers to the sender of a received datagram. The sender's queue pair is
    /// received.src_qp. `buffer` is the receive's buffer; only its first kGrhBytes bytes are read. Throws Error(EINVAL)
    /// if `received` and `buffer` do not tell where the datagram came from.
    [[nodiscard]] AddressHandle create_address_handle(const WideCompletion& received, std::span<const std::byte> buffer,
                                                      const std::string& device = "",
                                                      const ProtectionDomain* pd = nullptr);

    /// Listens at `address`: "ADDRESS:PORT" on a verbs device (port 0: any free port), a name on a software device.
    /// `form` is the form of the private data of requests, answers and rejections.
    [[nodiscard]] Listener listen(const std::string& address, const std::string& device = "",
                                  PrivateDataForm form = PrivateDataForm::framed);

    /// Returns an asynchronous event, after the runtime has reacted to it. Returns nothing when no event came within
    /// the time. Events of connections (EventType::connect_request and those after it) are never lost. Of all other
    /// events at most kEventsMax wait: the oldest are kept, and later events are only counted (Event::lost_after,
    /// ControlCounters::events_lost). An application that begins no operations need not take events. Unlike most calls,
    /// next_event() and poll_event() do not wait for the control thread. After the runtime was stopped, they return the
    /// events that are left, and then throw Error(ESHUTDOWN).
    [[nodiscard]] std::optional<Event> next_event(std::chrono::milliseconds timeout);
    /// next_event() without waiting.
    [[nodiscard]] std::optional<Event> poll_event();
    /// A descriptor for a program's own poll or epoll, level-triggered. It is readable while poll_event() has an event
    /// to return, and always after the runtime was stopped. The runtime owns the descriptor, which lives as long as the
    /// runtime. Do not read it.
    [[nodiscard]] int event_fd() const;

    [[nodiscard]] RuntimeReport report() const;
    [[nodiscard]] std::size_t worker_count() const noexcept;
    /// The counters of a worker. A Runtime returns the counters themselves, which go on counting. An Attachment returns
    /// a copy, which its next call for the same worker changes.
    [[nodiscard]] const WorkerCounters& worker_counters(std::size_t worker) const;
    [[nodiscard]] const ControlCounters& control_counters() const;
    /// What the statistics segment says now (statistics.hpp). An Attachment gets the tables session, queue_pair and
    /// process with its own rows, up to date, and the other tables empty. A Runtime gets all that it has written, which
    /// is some 50 ms old. Throws Error(EOPNOTSUPP) if the runtime has no segment ([statistics] segment).
    [[nodiscard]] statistics::Snapshot statistics() const;
    /// RNR NAKs of a whole device, for all its users. On a verbs device they come from the hardware counters. Returns
    /// no value if the device has no such counters.
    [[nodiscard]] std::optional<RnrCounts> rnr_counts(const std::string& device = "") const;

    // What a device is, as the verbs report it. Each call asks the device. Throws Error(ENODEV) when the device was
    // lost.
    [[nodiscard]] DeviceAttributes query_device(const std::string& device = "") const;
    [[nodiscard]] PortAttributes query_port(const std::string& device = "") const;
    /// The entries of the GID table that are in use.
    [[nodiscard]] std::vector<GidAttributes> gids(const std::string& device = "") const;
    /// Entry `index` of the P_Key table, in host byte order. Throws Error if there is no such entry.
    [[nodiscard]] std::uint16_t query_pkey(std::uint32_t index, const std::string& device = "") const;

    /// False if this object was default-constructed or moved from.
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

protected:
    Context() = default;
    POLLCORE_INTERNAL explicit Context(std::shared_ptr<ControlSide> control) noexcept;
    Context(Context&&) noexcept = default;
    Context& operator=(Context&&) noexcept = default;
    ~Context() = default;

    [[nodiscard]] const std::shared_ptr<ControlSide>& control_side() const noexcept { return control_; }
    /// Throws Error(EINVAL) if this object was default-constructed or moved from, and Error(EPERM) in a forked child.
    [[nodiscard]] POLLCORE_INTERNAL ControlSide& control() const;

private:
    std::shared_ptr<ControlSide> control_;
};

}  // namespace pollcore
