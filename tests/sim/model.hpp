// The expected result of each work request, computed from the submitted requests and the planned troubles.
//
// The model knows the rules from the specification and from the project's design. It shares only the public headers
// with the runtime. A check that fails throws Violation.
//
// A life of a queue pair ends when the queue pair is closed or reset. Each life is an End. If the queue pair is
// connected, its End is connected to an End of the peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/completion.hpp"
#include "pollcore/session.hpp"
#include "pollcore/work_request.hpp"
#include "sim/trace.hpp"

namespace pollcore::sim {

[[nodiscard]] constexpr bool writes(Opcode opcode) noexcept {
    return opcode == Opcode::rdma_write || opcode == Opcode::rdma_write_with_imm;
}

/// Reasons why requests of an end may fail. An excuse is set when its cause begins to exist, so a failure without an
/// excuse is a bug.
enum Excuse : std::uint32_t {
    kOwnRequest = 1u << 0,   ///< one of the end's requests cannot succeed
    kPeerRequest = 1u << 1,  ///< a request of the peer puts the end into error
    kInjected = 1u << 2,     ///< a fault with a status was planned on the end's device
    kEnding = 1u << 3,       ///< the end is being closed, reset or disconnected
    kPeerEnding = 1u << 4,   ///< the peer is being closed, reset or disconnected, or has failed
    kLossy = 1u << 5,        ///< packets may be lost for longer than the sender repeats them
    kDeviceLost = 1u << 6,
    kCqLost = 1u << 7,       ///< completions may be lost
    kPostRefused = 1u << 8,  ///< the provider may refuse a post
    kSessionClosing = 1u << 9,
    kShortOfReceives = 1u << 10,  ///< the peer may lack receives for longer than the sender repeats its sends
    kPeerDeviceLost = 1u << 11,
    kKept = 1u << 12,  ///< the provider may refuse to destroy the QP; then its requests must not be completed (H2)
    kModifyFails = 1u << 13,  ///< a change of the QP's state may fail half-way and put the QP into error
};

[[nodiscard]] std::string causes(std::uint32_t excuses);

/// A mistake that the application makes in a request.
enum class Defect : std::uint8_t {
    none,
    local_key,   ///< the lkey names no memory region
    remote_key,  ///< the rkey gives no access, or none any more
    too_long,    ///< a message longer than the receives of the peer
};

struct End;

/// A work request, from its submission to its end.
struct Request {
    std::uint64_t tag = 0;
    Opcode opcode = Opcode::send;
    bool signaled = true;
    Defect defect = Defect::none;
    std::uint32_t length = 0;
    std::uint32_t imm = 0;
    std::uint64_t pattern = 0;    ///< pattern of the request's bytes, if it has any
    std::byte* local = nullptr;   ///< the buffer here: target of receives and reads, source of sends and writes
    std::byte* remote = nullptr;  ///< writes: the target in the peer's memory
    std::uint64_t add = 0;
    std::uint32_t slot = 0;        ///< used only by the application
    std::uint64_t order = 0;       ///< position among its session's requests, or in its shared receive queue
    End* to = nullptr;             ///< datagrams: the receiver
    std::uint32_t window_key = 0;  ///< rkey of the window that the request uses or ends
    bool way_ends = false;         ///< the address handle was being destroyed when the request was submitted
};

/// A message that takes a receive, as the receiver must find it.
struct Message {
    std::uint64_t tag = 0;  ///< tag of its request
    std::uint32_t length = 0;
    std::uint32_t imm = 0;
    bool with_imm = false;
    bool of_write = false;  ///< RDMA write with immediate: its bytes are not in the receive
    bool too_long = false;
    std::uint64_t pattern = 0;
};

/// A datagram that was sent and not yet found. It may be lost if no receive is posted when it arrives, or if there is
/// another excuse for the loss.
struct Datagram {
    std::uint64_t tag = 0;
    const End* from = nullptr;
    std::uint32_t length = 0;
    std::uint32_t imm = 0;
    bool with_imm = false;
    std::uint64_t pattern = 0;
    std::uint64_t room = 0;  ///< number of receives certainly posted before the datagram was sent, including taken ones
    bool lost = false;       ///< may be lost: the request has failed, or its address handle or its receiver's life ends
};

/// The requests of one session on a send queue. Several sessions may post to one queue; the worker decides the order
/// between requests of different sessions.
struct Lane {
    std::deque<Request> sends;     ///< in flight, oldest first
    std::deque<Message> messages;  ///< sent, and not yet found by the peer
    /// tags of messages that the peer had not found when it found a later message
    std::vector<std::uint64_t> passed_over;
    bool failed = false;
};

/// One life of a queue pair.
struct End {
    std::string name;
    std::uint64_t number = 0;
    End* peer = nullptr;
    std::uint32_t excuses = 0;
    bool rnr_for_ever = false;     ///< rnr_retry is 7: a missing receive alone makes no request fail
    std::vector<Status> injected;  ///< statuses of planned faults that may hit this end
    std::vector<Lane> lanes;       ///< one for each session that posts
    std::deque<Request> receives;  ///< in flight, oldest first
    bool receive_failed = false;
    bool datagrams = false;  ///< a UD queue pair, without a peer
    std::uint32_t qp_num = 0;
    std::deque<Datagram> arriving;  ///< datagrams sent to this end, in the order of their submission
    std::uint64_t datagrams_found = 0;
    const End* found_from = nullptr;    ///< sender of the last datagram that was found
    std::uint64_t receives_posted = 0;  ///< receives up to this Request::order are certainly posted
    /// Request::order of the last receive that this end took from a shared receive queue
    std::uint64_t shared_taken = 0;
    std::uint64_t messages_done = 0;   ///< sent messages that succeeded
    std::uint64_t messages_found = 0;  ///< sent messages that the peer has found
    std::uint64_t added = 0;           ///< sum that successful atomics have added to the peer's word
    std::uint64_t added_perhaps = 0;   ///< sum of failed atomics, which the peer may have carried out

    [[nodiscard]] bool sends_in_flight() const noexcept;
    /// Whether a request in flight goes through this window.
    [[nodiscard]] bool uses_window(std::uint32_t key) const noexcept;
};

/// A shared receive queue. It outlives the queue pairs that take from it.
struct SharedQueue {
    std::string name;
    SrqHandle handle{};
    std::uint32_t excuses = 0;     ///< kEnding: the queue is being closed
    std::deque<Request> receives;  ///< in flight, oldest first
    std::uint64_t submitted = 0;
    std::uint64_t taken = 0;  ///< Request::order of the last receive that any queue pair took
};

[[nodiscard]] std::string_view opcode_name(Opcode opcode) noexcept;

/// Fills `bytes` with values that identify the message and the position of each byte.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t pattern) noexcept;
[[nodiscard]] bool has_pattern(std::span<const std::byte> bytes, std::uint64_t pattern) noexcept;

class Model {
public:
    explicit Model(Trace& trace) : trace_(trace) {}

    /// A packet was lost, or will be. Datagrams may be lost with their packet. Requests on connections survive the
    /// loss, with one exception: the lost packet may be the answer to a request that cannot succeed. The peer is then
    /// in error, and does not answer the repeated request.
    bool packets_lost = false;
    /// A packet was late, or will be, so the packets of one sender may arrive in another order.
    bool packets_late = false;

    /// Begins a life of a queue pair that `lanes` sessions post to.
    End& begin(std::string name, std::size_t lanes);
    void connect(End& a, End& b);
    /// Datagrams name a queue pair number, not a life: `end` may find datagrams that were sent to its previous life
    /// `before`.
    void inherit(End& end, End& before);
    void excuse(End& end, std::uint32_t excuses);

    using OnRetired = std::function<void(const Request&)>;

    /// Call before this lane's session submits the request: the peer may receive the message before the submission
    /// returns. Receives have no lane.
    void submitting(End& end, std::size_t lane, const Request& request);
    /// The runtime has refused the request.
    void refused(End& end, std::size_t lane, const Request& request);
    /// The runtime has completed a request. Returns the request; `on_retired` is called for each unsignaled request
    /// that ends with it.
    Request completed(End& end, std::size_t lane, const Completion& completion, const OnRetired& on_retired);

    SharedQueue& begin_shared(std::string name, SrqHandle handle);
    void excuse(SharedQueue& queue, std::uint32_t excuses) { queue.excuses |= excuses; }
    void submitting(SharedQueue& queue, Request request);
    void refused(SharedQueue& queue);
    /// `end` is the life of the queue pair that the completion names; null if the completion names none.
    Request completed(SharedQueue& queue, End* end, const Completion& completion);
    /// Call when the queue completes nothing more. Returns how many receives stay in flight for ever.
    [[nodiscard]] std::size_t over(const SharedQueue& queue) const;

    /// The session has counted `more` further unsignaled requests of the lane as succeeded. Ends the lane's oldest
    /// unsignaled requests, and returns the number of ended requests.
    std::uint32_t retired(End& end, std::size_t lane, std::uint32_t more, const OnRetired& on_retired);
    /// Call when the lane completes nothing more: the remaining requests must be unsignaled, and have succeeded.
    /// Returns how many stay in flight for ever because the provider keeps the queue pair.
    std::size_t over(End& end, std::size_t lane, const OnRetired& on_retired);
    /// True if every message that must arrive was found, or if a failed receive or an excuse explains why it was not.
    [[nodiscard]] bool rests(const End& end) const;
    /// Call after both ends have had enough time. Throws unless rests().
    void at_rest(const End& end) const;
    /// Call when all work is over: `word` is the word that the peer's atomics have changed.
    void at_end(const End& end, std::uint64_t word) const;

    [[nodiscard]] const std::deque<End>& ends() const noexcept { return ends_; }

private:
    Request settled(End& end, Lane& lane, const Request& request, const Completion& completion);
    void succeeded(End& end, Lane& lane, const Request& request);
    void found(End& end, const Request& receive, const Completion& completion);
    void found_datagram(End& end, const Request& receive, const Completion& completion);
    [[nodiscard]] bool may_be_lost(const End& end, const Datagram& datagram) const noexcept;
    void require_cause(const End& end, const Request& request, const Completion& completion) const;
    [[nodiscard]] bool explained(const End& end, const Request& request, const Completion& completion) const;

    Trace& trace_;
    std::deque<End> ends_;
    std::deque<SharedQueue> shared_;
};

}  // namespace pollcore::sim
