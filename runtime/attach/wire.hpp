// The protocol between an attached process and its daemon, over a SOCK_SEQPACKET socket (unix(7)). A packet is one
// message, and the kind of the message fixes its size. The process sends requests, and the daemon answers each of them,
// unless the attachment ends before. The daemon also sends events, unasked.
//
// The process and the daemon are on one machine, so numbers have this machine's byte order. Descriptors travel beside a
// message (SCM_RIGHTS). Every message that the daemon reads is hostile: see the checks in answering.hpp and
// attached_client.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "pollcore/counters.hpp"
#include "pollcore/device_attributes.hpp"
#include "pollcore/event.hpp"
#include "pollcore/queue_pair.hpp"
#include "session/control_side.hpp"
#include "session/packed_attributes.hpp"
#include "session/text.hpp"

namespace pollcore::wire {

inline constexpr std::uint32_t kMagic = 0x61436c50;  // "PlCa"
/// The process and the daemon need the same version. Otherwise the daemon answers with its version in the error text,
/// and closes the connection.
inline constexpr std::uint16_t kVersion = 8;
inline constexpr std::size_t kDescriptorsMax = 4;

enum class Kind : std::uint16_t {
    none,
    attach,
    detach,
    open_session,
    close_session,
    create_qp,
    close_qp,
    reset_qp,
    qp_info,
    qp_status,
    connect_to,
    connect,
    disconnect,
    rnr_counts,
    listen,
    stop_listening,
    next_request,
    accept,
    reject,
    create_pd,
    release_pd,
    register_memory,
    deregister,
    create_window,
    window_rkey,
    deallocate,
    create_ah,
    create_ah_to,
    create_ah_back,
    destroy_ah,
    create_srq,
    close_srq,
    arm_limit,
    srq_limit,
    create_pool,
    close_pool,
    held_buffers,
    worker_counters,
    control_counters,
    report_device,
    begin_connect,
    begin_accept,
    begin_ending,
    cancel,
    next_events,
    modify_qp,
    query_qp,
    query_device,
    query_port,
    query_gids,
    query_pkey,
    share_context,
    find_key,
    copy_statistics,
    end,            ///< the number of kinds
    event = 0x100,  ///< from the daemon, unasked
};

struct Header {
    std::uint32_t magic = kMagic;
    std::uint16_t version = kVersion;
    Kind kind = Kind::none;
    std::uint64_t id = 0;  ///< the process chooses it for a request, and the answer repeats it; 0: an event
};
static_assert(sizeof(Header) == 16);

using ErrorText = Text<488>;

struct Nothing {
    std::uint64_t nothing = 0;
};

template <class Body>
struct Request {
    Header header;
    Body body;
};

/// Precedes the body of every answer. If `error` is not 0, the body has no meaning.
struct Outcome {
    std::int32_t error = 0;  ///< errno value; 0: done
    std::uint32_t reserved = 0;
    ErrorText text;
};
template <class Body>
struct Answer {
    Header header;
    Outcome outcome;
    Body body;
};

// ---- Requests. Each request names its kind, and the type of its answer. ----

struct Attached {
    std::uint32_t qps_max = 0;
    std::uint32_t devices = 0;
    std::uint32_t workers = 0;
    std::uint32_t client = 0;         ///< the daemon's number for this process, as in its log
    std::uint32_t pool_counters = 0;  ///< number of entries in the memfd with the counters of receive pools
    std::uint32_t hugepages = 0;
    std::uint64_t registered_max = 0;  ///< bytes
    std::uint64_t drain_ms = 0;        ///< the time that closing, resetting or detaching may take
    Text<256> memory;                  ///< RuntimeReport::memory
    Text<256> eal;
};
struct Attach {
    static constexpr Kind kKind = Kind::attach;
    /// The answer comes with the daemon's pidfd, and with a read-only memfd that contains the counters of receive
    /// pools.
    using Answered = Attached;
    NameText name;  ///< the name that the process gives itself, for the log
};

struct Detached {
    std::uint32_t whole = 0;
    std::uint32_t reserved = 0;
};
struct Detach {
    static constexpr Kind kKind = Kind::detach;
    using Answered = Detached;
    std::uint64_t nothing = 0;
};

struct SessionOpened {
    std::uint32_t id = 0;
    std::uint32_t worker = 0;
    std::uint32_t worker_sleeps = 0;
    std::uint32_t reserved = 0;
    NameText worker_name;
};
/// The request comes with a memfd of SessionLayout::bytes() bytes.
struct OpenSession {
    static constexpr Kind kKind = Kind::open_session;
    /// The answer comes with an eventfd if the worker sleeps, and with a socket if `events` is set.
    using Answered = SessionOpened;
    NameText worker;
    std::uint64_t bytes = 0;
    std::uint32_t submission_slots = 0;
    std::uint32_t completion_slots = 0;
    std::uint32_t pool_buffers = 0;
    std::uint32_t wide = 0;
    std::uint32_t events = 0;
    std::uint32_t device_time = 0;
    NameText name;
};
struct CloseSession {
    static constexpr Kind kKind = Kind::close_session;
    using Answered = Nothing;
    std::uint32_t id = 0;
    std::uint32_t reserved = 0;
};

struct QpNamed {
    QpHandle handle;
    std::uint32_t drained = 0;
};
struct CreateQp {
    static constexpr Kind kKind = Kind::create_qp;
    using Answered = QpNamed;
    QpSpec spec;
};
struct CloseQp {
    static constexpr Kind kKind = Kind::close_qp;
    using Answered = QpNamed;
    QpHandle handle;
    std::uint32_t reserved = 0;
};
struct ResetQp {
    static constexpr Kind kKind = Kind::reset_qp;
    using Answered = QpNamed;
    QpHandle handle;
    std::uint32_t reserved = 0;
};
struct AskQpInfo {
    static constexpr Kind kKind = Kind::qp_info;
    using Answered = QpInfo;
    QpHandle handle;
    std::uint32_t reserved = 0;
};
struct QpStatus {
    std::uint32_t qp_num = 0;
    std::uint32_t disconnected = 0;
};
struct AskQpStatus {
    static constexpr Kind kKind = Kind::qp_status;
    using Answered = QpStatus;
    QpHandle handle;
    std::uint32_t reserved = 0;
};
struct ConnectTo {
    static constexpr Kind kKind = Kind::connect_to;
    using Answered = Nothing;
    QpHandle handle;
    std::uint32_t reserved = 0;
    QpInfo peer;
    PathAttributes path;
};

/// A connection's private data.
struct PrivateData {
    std::uint32_t size = 0;
    std::array<std::byte, kRawReplyPrivateDataMax> bytes{};
};
[[nodiscard]] inline std::vector<std::byte> bytes_of(const PrivateData& data) {
    const std::size_t size = std::min<std::size_t>(data.size, data.bytes.size());
    return {data.bytes.begin(), data.bytes.begin() + static_cast<std::ptrdiff_t>(size)};
}
using AddressText = Text<256>;

struct Connected {
    PrivateData answered;
};
struct Connect {
    static constexpr Kind kKind = Kind::connect;
    using Answered = Connected;
    QpHandle handle;
    std::uint32_t timeout_ms = 0;
    std::uint32_t raw = 0;  ///< PrivateDataForm::raw, else framed
    AddressText address;
    PathAttributes path;
    PrivateData private_data;
};
struct Disconnect {
    static constexpr Kind kKind = Kind::disconnect;
    using Answered = Nothing;
    QpHandle handle;
    std::uint32_t reserved = 0;
};
struct Counted {
    std::uint64_t known = 0;
    RnrCounts counts;
};
struct AskRnrCounts {
    static constexpr Kind kKind = Kind::rnr_counts;
    using Answered = Counted;
    QpHandle handle;  ///< if it is not valid, the request is for the counts of `device`
    std::uint32_t reserved = 0;
    NameText device;
};

struct Listening {
    std::uint64_t id = 0;
    std::uint32_t device = 0;
    std::uint32_t reserved = 0;
    AddressText address;
};
struct Listen {
    static constexpr Kind kKind = Kind::listen;
    using Answered = Listening;
    AddressText address;
    NameText device;
    std::uint64_t raw = 0;  ///< PrivateDataForm::raw, else framed
};
struct StopListening {
    static constexpr Kind kKind = Kind::stop_listening;
    using Answered = Nothing;
    std::uint64_t listener = 0;
    std::uint32_t device = 0;
    std::uint32_t reserved = 0;
};
struct Incoming {
    std::uint64_t id = 0;  ///< 0: no connection request came within the time
    AddressText peer;
    FlowBlock flow;
    PrivateData private_data;
    std::uint32_t max_dest_rd_atomic = 0;
    std::uint32_t reserved = 0;
};
struct NextRequest {
    static constexpr Kind kKind = Kind::next_request;
    using Answered = Incoming;
    std::uint64_t listener = 0;
    std::uint32_t device = 0;
    std::uint32_t timeout_ms = 0;
};
struct Accept {
    static constexpr Kind kKind = Kind::accept;
    using Answered = Nothing;
    std::uint64_t request = 0;
    std::uint32_t device = 0;
    QpHandle handle;
    FlowBlock flow;
    std::uint32_t timeout_ms = 0;
    PathAttributes path;
    PrivateData private_data;
};
struct Reject {
    static constexpr Kind kKind = Kind::reject;
    using Answered = Nothing;
    std::uint64_t request = 0;
    std::uint32_t device = 0;
    PrivateData private_data;
};

struct PdNamed {
    PdId pd = 0;
    std::uint32_t verbs_handle = 0;  ///< ibv_pd::handle, for regions that the process registers itself
};
struct CreatePd {
    static constexpr Kind kKind = Kind::create_pd;
    using Answered = PdNamed;
    NameText device;
};
struct ReleasePd {
    static constexpr Kind kKind = Kind::release_pd;
    using Answered = Nothing;
    PdId pd = 0;
    std::uint32_t reserved = 0;
};
struct Registered {
    std::uint64_t id = 0;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    MrHandle handle;
    std::uint32_t reserved = 0;
};
struct RegisterMemory {
    static constexpr Kind kKind = Kind::register_memory;
    using Answered = Registered;
    std::uint64_t parent = 0;  ///< a region in the same memfd; 0: the memfd comes with the request
    std::uint64_t offset = 0;  ///< the start of the memory in the memfd, in bytes
    std::uint64_t bytes = 0;
    std::uint64_t iova = 0;
    NameText device;
    PdId pd = 0;
    Access access;
};
struct Deregister {
    static constexpr Kind kKind = Kind::deregister;
    using Answered = Nothing;
    std::uint64_t region = 0;
};
struct WindowNamed {
    MwHandle handle;
    std::uint32_t rkey = 0;
};
struct CreateWindow {
    static constexpr Kind kKind = Kind::create_window;
    using Answered = WindowNamed;
    NameText device;
    std::uint32_t session = 0;
    PdId pd = 0;
    WindowType type{};
    std::array<std::uint8_t, 7> reserved{};
};
struct AskWindowRkey {
    static constexpr Kind kKind = Kind::window_rkey;
    using Answered = WindowNamed;
    MwHandle handle;
    std::uint32_t reserved = 0;
};
struct Deallocate {
    static constexpr Kind kKind = Kind::deallocate;
    using Answered = Nothing;
    MwHandle handle;
    std::uint32_t reserved = 0;
};

struct AhNamed {
    AhHandle handle;
    std::uint32_t reserved = 0;
};
struct CreateAh {
    static constexpr Kind kKind = Kind::create_ah;
    using Answered = AhNamed;
    NameText device;
    PdId pd = 0;
    QpInfo peer;
    PathAttributes path;
};
struct CreateAhTo {
    static constexpr Kind kKind = Kind::create_ah_to;
    using Answered = AhNamed;
    NameText device;
    PdId pd = 0;
    AddressAttributes to;
};
struct CreateAhBack {
    static constexpr Kind kKind = Kind::create_ah_back;
    using Answered = AhNamed;
    NameText device;
    std::array<std::byte, sizeof(WideCompletion)> received{};
    std::array<std::byte, kGrhBytes> grh{};
    PdId pd = 0;
    std::uint32_t reserved = 0;
};
struct DestroyAh {
    static constexpr Kind kKind = Kind::destroy_ah;
    using Answered = Nothing;
    AhHandle handle;
    std::uint32_t reserved = 0;
};

struct SrqNamed {
    SrqHandle handle;
    std::uint32_t limit = 0;
};
struct CreateSrq {
    static constexpr Kind kKind = Kind::create_srq;
    using Answered = SrqNamed;
    SrqSpec spec;
};
struct CloseSrq {
    static constexpr Kind kKind = Kind::close_srq;
    using Answered = Nothing;
    SrqHandle handle;
    std::uint32_t reserved = 0;
};
struct ArmLimit {
    static constexpr Kind kKind = Kind::arm_limit;
    using Answered = Nothing;
    SrqHandle handle;
    std::uint32_t limit = 0;
};
struct AskSrqLimit {
    static constexpr Kind kKind = Kind::srq_limit;
    using Answered = SrqNamed;
    SrqHandle handle;
    std::uint32_t reserved = 0;
};

struct PoolNamed {
    PoolHandle handle;
    std::uint32_t counters = 0;  ///< the index of the pool's counters in the memfd with the counters of receive pools
};
struct CreatePool {
    static constexpr Kind kKind = Kind::create_pool;
    using Answered = PoolNamed;
    PoolSpec spec;
};
struct ClosePool {
    static constexpr Kind kKind = Kind::close_pool;
    using Answered = Nothing;
    PoolHandle handle;
    std::uint32_t reserved = 0;
    std::uint64_t region = 0;
};
/// Some of a pool's held buffers. If `more` is set, the process asks again for the remaining ones.
struct Held {
    static constexpr std::size_t kMost = 128;
    std::uint32_t count = 0;
    std::uint32_t more = 0;
    std::array<HeldBuffer, kMost> buffers{};
};
struct AskHeldBuffers {
    static constexpr Kind kKind = Kind::held_buffers;
    using Answered = Held;
    PoolHandle handle;
    std::uint32_t from = 0;  ///< how many of the held buffers the process knows already
};

struct WorkerCounted {
    std::array<std::uint64_t, sizeof(WorkerCounters) / sizeof(std::uint64_t)> values{};
};
struct AskWorkerCounters {
    static constexpr Kind kKind = Kind::worker_counters;
    using Answered = WorkerCounted;
    std::uint64_t worker = 0;
};
struct ControlCounted {
    std::array<std::uint64_t, sizeof(ControlCounters) / sizeof(std::uint64_t)> values{};
};
struct AskControlCounters {
    static constexpr Kind kKind = Kind::control_counters;
    using Answered = ControlCounted;
    std::uint64_t nothing = 0;
};

/// The answer comes with a sealed memfd that has a statistics segment: the rows of the process.
struct CopyStatistics {
    static constexpr Kind kKind = Kind::copy_statistics;
    using Answered = Nothing;
    std::uint64_t nothing = 0;
};

struct DeviceReported {
    NameText name;
    Text<192> description;
    NameText verbs_name;
    NameText uverbs_name;
    std::int32_t ibv_index = -1;
    std::uint32_t port_num = 1;
    std::uint32_t inline_max = 0;
    std::uint32_t qp_depth_max = 0;
    std::uint32_t cqes_max = 0;
    std::uint32_t sges_max = 0;
    std::uint32_t extended_cqs = 0;
    std::uint32_t memory_windows_1 = 0;
    std::uint32_t memory_windows_2 = 0;
    std::uint32_t invalidation = 0;
    std::uint64_t completion_timestamp_mask = 0;
    std::uint64_t hca_core_clock_khz = 0;
};
struct AskDevice {
    static constexpr Kind kKind = Kind::report_device;
    using Answered = DeviceReported;
    std::uint64_t index = 0;
};

// Each of the next three begins an operation, and is answered at once. An event reports the end of the operation.
struct BeginConnect {
    static constexpr Kind kKind = Kind::begin_connect;
    using Answered = Nothing;
    Connect what;
};
struct BeginAccept {
    static constexpr Kind kKind = Kind::begin_accept;
    using Answered = Nothing;
    Accept what;
};
struct BeginEnding {
    static constexpr Kind kKind = Kind::begin_ending;
    using Answered = Nothing;
    QpHandle handle;
    std::uint32_t reset = 0;  ///< else a close
    std::uint64_t timeout_of_end_ms = 0;
};
struct Cancelled {
    std::uint64_t abandoned = 0;  ///< the result of ControlSide::abandon_qp()
};
struct Cancel {
    static constexpr Kind kKind = Kind::cancel;
    using Answered = Cancelled;
    QpHandle handle;
    std::uint32_t abandon = 0;  ///< ControlSide::abandon_qp(), else ControlSide::cancel()
};

/// An event of a connection.
struct ConnectionEvent {
    std::uint32_t type = 0;
    QpHandle qp;
    QpHandle renewed;
    std::int32_t error = 0;
    std::uint32_t drained = 0;
    std::uint32_t listener_device = 0;
    std::uint64_t listener = 0;
};
/// Events of connections. At most one of them has a text or private data.
struct ConnectionEvents {
    static constexpr std::size_t kMost = 64;
    std::uint32_t count = 0;
    std::uint32_t detailed = kMost;  ///< the index of the event that `text` and `private_data` belong to
    std::array<ConnectionEvent, kMost> events{};
    ErrorText text;
    PrivateData private_data;
};
/// Asks for events of connections. The answer comes when there are some. A process has one such request at a time.
struct NextEvents {
    static constexpr Kind kKind = Kind::next_events;
    using Answered = ConnectionEvents;
    std::uint64_t nothing = 0;
};

struct ModifyQp {
    static constexpr Kind kKind = Kind::modify_qp;
    using Answered = Nothing;
    QpHandle handle;
    std::uint32_t reserved = 0;
    PackedAttributes attributes;
};
struct QpQueried {
    PackedAttributes attributes;
    QpCapabilities cap;
    std::uint32_t reserved = 0;
};
struct AskQp {
    static constexpr Kind kKind = Kind::query_qp;
    using Answered = QpQueried;
    QpHandle handle;
    std::uint32_t reserved = 0;
};
struct AskDeviceAttributes {
    static constexpr Kind kKind = Kind::query_device;
    using Answered = DeviceAttributes;
    NameText device;
};
struct PortQueried {
    PortAttributes port;
    std::uint32_t reserved = 0;
};
struct AskPort {
    static constexpr Kind kKind = Kind::query_port;
    using Answered = PortQueried;
    NameText device;
};
/// Some entries of a GID table. If `more` is set, the process asks again for the remaining ones.
struct Gids {
    static constexpr std::size_t kMost = 96;
    std::uint32_t count = 0;
    std::uint32_t more = 0;
    std::array<GidAttributes, kMost> gids{};
};
struct AskGids {
    static constexpr Kind kKind = Kind::query_gids;
    using Answered = Gids;
    NameText device;
    std::uint64_t from = 0;  ///< the lowest index that the process does not know yet
};
struct Pkey {
    std::uint64_t pkey = 0;
};
struct AskPkey {
    static constexpr Kind kKind = Kind::query_pkey;
    using Answered = Pkey;
    NameText device;
    std::uint64_t index = 0;
};

/// The answer comes with the command descriptor of a context of the process's own, unless the device has no kernel
/// behind it.
struct ContextShared {
    std::uint32_t has_kernel = 0;
    std::uint32_t driver_id = 0;     ///< ib_uverbs_ioctl_hdr::driver_id
    PdId pd = 0;                     ///< the process's default protection domain
    std::uint32_t verbs_handle = 0;  ///< ibv_pd::handle of that domain
};
/// Asks for a context of the process's own. Comes before any other request about the device.
struct ShareContext {
    static constexpr Kind kKind = Kind::share_context;
    using Answered = ContextShared;
    NameText device;
};
struct KeyFound {
    std::uint64_t in_use = 0;
};
/// Whether work requests of the process name the key of a region that it has registered itself.
struct FindKey {
    static constexpr Kind kKind = Kind::find_key;
    using Answered = KeyFound;
    PdId pd = 0;
    std::uint32_t lkey = 0;
};

/// The body of an event, which the daemon sends unasked.
struct EventTold {
    std::uint32_t type = 0;
    QpHandle qp;
    SrqHandle srq;
    std::uint32_t port = 0;
    std::uint64_t lost_after = 0;
    NameText device;
    NameText worker;
    ErrorText text;  ///< why the daemon ends the attachment; else empty
};

template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

/// The largest size of a message in either direction, in bytes.
inline constexpr std::size_t kMessageMax = 4096;
static_assert(sizeof(Request<CreateQp>) <= kMessageMax && sizeof(Answer<Held>) <= kMessageMax &&
              sizeof(Answer<Gids>) <= kMessageMax && sizeof(Answer<ConnectionEvents>) <= kMessageMax &&
              sizeof(Answer<WorkerCounted>) <= kMessageMax);

}  // namespace pollcore::wire
