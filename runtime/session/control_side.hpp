// The calls that an application may make to the control side of a runtime, in this process or in a daemon.
//
// The objects of include/pollcore (QueuePair, MemoryRegion, ...) consist of handles and numbers, and call a
// ControlSide. There are two kinds of ControlSide: RuntimeState has its control thread in this process, and
// AttachedState sends the call to a daemon.
//
// Thread safety: any thread may call every function. Each call blocks until it is done.
// Errors: pollcore::Error.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pollcore/counters.hpp"
#include "pollcore/device_attributes.hpp"
#include "pollcore/event.hpp"
#include "pollcore/memory.hpp"
#include "pollcore/queue_pair.hpp"
#include "pollcore/receive_pool.hpp"
#include "pollcore/report.hpp"
#include "pollcore/session.hpp"
#include "pollcore/statistics.hpp"
#include "session/application_events.hpp"
#include "session/layout.hpp"
#include "session/live_queue_pairs.hpp"
#include "session/session_host.hpp"
#include "session/text.hpp"

namespace pollcore {

// ---- Options that have names and handles in place of objects. They are plain data, because they also go through a
// socket. ----

/// The number of a protection domain; 0 is the device's default or, in an attached process, the process's own default.
using PdId = std::uint32_t;

struct ShareSpec {
    std::uint32_t session = 0;  ///< Session::id()
    std::uint32_t send_depth = 0;
};

/// QueuePairOptions.
struct QpSpec {
    NameText device;
    PdId pd = 0;
    std::uint32_t share_count = 0;
    std::array<ShareSpec, kQpSharesMax> shares;
    std::uint32_t qkey = 0;
    std::uint32_t recv_depth = 0;
    std::uint32_t pool_share = 0;
    std::uint32_t rendezvous_share = 0;
    std::uint32_t sges_max = 1;
    std::uint32_t inline_max = 0;
    SrqHandle srq;    ///< not valid if the queue pair has its own receive queue
    PoolHandle pool;  ///< not valid if the session posts the receives
    PoolHandle rendezvous_pool;
    QpType type = QpType::rc;
    FlowControl flow = FlowControl::off;
    RemoteAccess remote_access;
    bool separate_cqs = false;
    bool coalesce_signals = false;
    bool by_hand = false;
    std::array<std::uint8_t, 4> reserved{};
    NameText name;
};

/// SharedReceiveQueueOptions.
struct SrqSpec {
    NameText device;
    PdId pd = 0;
    std::uint32_t session = 0;
    std::uint32_t depth = 0;
    std::uint32_t sges_max = 1;
    std::uint32_t pool_share = 0;
    std::uint32_t credit_connections = 0;
    PoolHandle pool;
    std::uint32_t reserved = 0;
};

/// ReceivePoolOptions or WriteRingOptions, with the region that has the memory.
struct PoolSpec {
    NameText device;
    PdId pd = 0;
    std::uint32_t session = 0;
    std::uint64_t region = 0;
    std::uint32_t buffers = 0;       ///< write ring: messages that the application may hold
    std::uint32_t buffer_bytes = 0;  ///< write ring: bytes of the whole ring
    // Only for a receive pool: the first buffer's offset in the region, and the distance from one buffer to the next.
    std::uint32_t first_byte = 0;
    std::uint32_t stride = 0;
    bool ring = false;
    std::array<std::uint8_t, 7> reserved{};

    /// The bytes that the pool takes of its region, from the region's beginning.
    [[nodiscard]] constexpr std::uint64_t bytes() const noexcept {
        return ring ? buffer_bytes : first_byte + std::uint64_t{stride} * (buffers - 1) + buffer_bytes;
    }
};

/// The smallest distance from one buffer of a receive pool to the next. With it no cache line belongs to two buffers,
/// so the application and the device never write to one line.
[[nodiscard]] constexpr std::uint32_t pool_stride(std::uint32_t first_byte, std::uint32_t buffer_bytes) noexcept {
    return (first_byte % kCacheLine + buffer_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

// ---- Results of the calls that make objects ----

class InFlightLog;

struct OpenedSession {
    std::uint32_t id = 0;
    std::uint32_t worker = 0;
    std::string worker_name{};
    void* block = nullptr;
    SessionLayout layout;
    SessionWaking waking;
    std::shared_ptr<InFlightLog> log;
};

struct RegionInfo {
    std::uint64_t id = 0;
    std::byte* data = nullptr;
    std::size_t size = 0;
    std::uint64_t iova = 0;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    MrHandle handle{};
};

struct PoolInfo {
    PoolHandle handle{};
    const ReceivePoolCounters* counters = nullptr;
};

struct OpenedListener {
    std::uint64_t id = 0;
    std::uint32_t device = 0;
    std::string address;
};

struct IncomingConnection {
    std::uint64_t id = 0;
    std::string peer;
    std::vector<std::byte> private_data;
    FlowBlock flow;
    std::uint8_t max_dest_rd_atomic = 0;
};

class ControlSide : public SessionHost, public std::enable_shared_from_this<ControlSide> {
public:
    ControlSide() = default;
    ControlSide(const ControlSide&) = delete;
    ControlSide& operator=(const ControlSide&) = delete;

    [[nodiscard]] bool has_queue_pair(QpHandle qp) const noexcept final { return live_qps.has(qp); }
    /// The open queue pairs of this process. Context adds a queue pair, and QueuePair removes it when it is closed.
    LiveQueuePairs live_qps;

    /// Closes all objects that were made here. Returns false when draining was cut short.
    virtual bool stop() = 0;

    [[nodiscard]] virtual OpenedSession open_session(const SessionOptions& options) = 0;

    [[nodiscard]] virtual QpHandle create_qp(const QpSpec& spec) = 0;
    virtual bool close_qp(QpHandle handle) = 0;
    /// Returns the handle with its new generation, and whether all requests in flight were flushed in time.
    virtual std::pair<QpHandle, bool> reset(QpHandle handle) = 0;
    [[nodiscard]] virtual QpInfo info(QpHandle handle) = 0;
    virtual void connect(QpHandle handle, const QpInfo& peer, const PathAttributes& path) = 0;
    virtual std::vector<std::byte> connect(QpHandle handle, const std::string& address,
                                           const ConnectOptions& options) = 0;
    /// `attributes.qp_state` is not RESET: see reset().
    virtual void modify_qp(QpHandle handle, const QpAttributes& attributes) = 0;
    [[nodiscard]] virtual QpQuery query_qp(QpHandle handle) = 0;
    // Each of these begins an operation. An event reports its end. A `timeout` of 0 means the configuration's
    // drain_timeout.
    virtual void begin_connect(QpHandle handle, const std::string& address, const ConnectOptions& options) = 0;
    virtual void begin_accept(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                              const ConnectOptions& options) = 0;
    virtual void begin_reset(QpHandle handle, std::chrono::milliseconds timeout) = 0;
    virtual void begin_close(QpHandle handle, std::chrono::milliseconds timeout) = 0;
    /// Ends the operation that was begun on the queue pair, if there is one.
    virtual void cancel(QpHandle handle) = 0;
    /// If an operation is under way that was begun on the queue pair: cancels it, begins to close the queue pair, does
    /// not wait, and returns true. Nobody learns of the outcome. Otherwise does nothing and returns false.
    [[nodiscard]] virtual bool abandon_qp(QpHandle handle) = 0;
    virtual void disconnect(QpHandle handle) = 0;
    [[nodiscard]] virtual bool disconnected(QpHandle handle) = 0;
    [[nodiscard]] virtual std::uint32_t qp_num(QpHandle handle) = 0;
    [[nodiscard]] virtual std::optional<RnrCounts> rnr_counts(QpHandle handle) = 0;
    [[nodiscard]] virtual std::optional<RnrCounts> rnr_counts(const std::string& device) = 0;

    [[nodiscard]] virtual DeviceAttributes query_device(const std::string& device) = 0;
    [[nodiscard]] virtual PortAttributes query_port(const std::string& device) = 0;
    [[nodiscard]] virtual std::vector<GidAttributes> gids(const std::string& device) = 0;
    [[nodiscard]] virtual std::uint16_t query_pkey(std::uint32_t index, const std::string& device) = 0;

    [[nodiscard]] virtual OpenedListener listen(const std::string& address, const std::string& device,
                                                PrivateDataForm form) = 0;
    virtual void stop_listening(std::uint32_t device, std::uint64_t listener) noexcept = 0;
    [[nodiscard]] virtual std::optional<IncomingConnection> next_request(std::uint32_t device, std::uint64_t listener,
                                                                         std::chrono::milliseconds timeout) = 0;
    virtual void accept(std::uint32_t device, std::uint64_t request, QpHandle handle, const FlowBlock& flow,
                        const ConnectOptions& options) = 0;
    virtual void reject(std::uint32_t device, std::uint64_t request,
                        const std::vector<std::byte>& private_data) noexcept = 0;

    [[nodiscard]] virtual PdId create_pd(const std::string& device) = 0;
    virtual void release_pd(PdId pd) noexcept = 0;
    [[nodiscard]] virtual RegionInfo allocate(std::size_t bytes, Access access, const std::string& device, PdId pd) = 0;
    [[nodiscard]] virtual RegionInfo register_memory(void* data, std::size_t bytes, std::uint64_t iova, Access access,
                                                     const std::string& device, PdId pd) = 0;
    [[nodiscard]] virtual RegionInfo register_dmabuf(const DmabufRange& range, std::uint64_t iova, Access access,
                                                     const std::string& device, PdId pd) = 0;
    virtual void deregister(std::uint64_t region) = 0;
    [[nodiscard]] virtual MwHandle create_window(std::uint32_t session, WindowType type, const std::string& device,
                                                 PdId pd) = 0;
    [[nodiscard]] virtual std::uint32_t window_rkey(MwHandle handle) = 0;
    virtual void deallocate(MwHandle handle) = 0;

    [[nodiscard]] virtual AhHandle create_ah(const QpInfo& peer, const PathAttributes& path, const std::string& device,
                                             PdId pd) = 0;
    [[nodiscard]] virtual AhHandle create_ah(const AddressAttributes& address, const std::string& device, PdId pd) = 0;
    /// `grh` holds the first bytes of the datagram's buffer.
    [[nodiscard]] virtual AhHandle create_ah(const WideCompletion& received, std::span<const std::byte, kGrhBytes> grh,
                                             const std::string& device, PdId pd) = 0;
    virtual void destroy_ah(AhHandle handle) = 0;

    [[nodiscard]] virtual SrqHandle create_srq(const SrqSpec& spec) = 0;
    virtual void close_srq(SrqHandle handle) = 0;
    virtual void arm_limit(SrqHandle handle, std::uint32_t limit) = 0;
    [[nodiscard]] virtual std::uint32_t limit(SrqHandle handle) = 0;

    [[nodiscard]] virtual PoolInfo create_pool(const PoolSpec& spec) = 0;
    /// Ends the pool and its region.
    virtual void close_pool(PoolHandle handle, std::uint64_t region) = 0;
    [[nodiscard]] virtual std::vector<HeldBuffer> held_buffers(PoolHandle handle) = 0;

    [[nodiscard]] virtual ApplicationEvents& events() noexcept = 0;
    [[nodiscard]] virtual RuntimeReport report() = 0;
    [[nodiscard]] virtual std::size_t worker_count() noexcept = 0;
    [[nodiscard]] virtual const WorkerCounters& worker_counters(std::size_t worker) = 0;
    [[nodiscard]] virtual const ControlCounters& control_counters() = 0;
    [[nodiscard]] virtual statistics::Snapshot statistics() = 0;
};

/// Throws Error(EPERM) in a forked child.
void require_own_process(const ControlSide& control);

/// Makes a control side whose destructor runs only in this process, never in a forked child.
template <class Side, class... Arguments>
[[nodiscard]] std::shared_ptr<Side> make_control_side(Arguments&&... arguments) {
    return std::shared_ptr<Side>(new Side(std::forward<Arguments>(arguments)...), [](Side* side) {
        if (!side->is_forked()) {
            delete side;
        }
    });
}

}  // namespace pollcore
