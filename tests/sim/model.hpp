// What each work request should come to, worked out from what was asked and what was planned to go wrong.
//
// It knows the rules of reliable connections as the specification and the project's design state them, and nothing of
// the runtime: it shares no code with it, only the public records. A check that fails throws Violation.
//
// A queue pair's life ends when it is closed or reset; each life is an End of its own here, connected to one of the
// peer's.
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

/// Why work of an end may fail. Set when the cause begins to exist, so a failure without any is a mistake.
enum Excuse : std::uint32_t {
    kOwnRequest = 1u << 0,   ///< one of its requests cannot succeed
    kPeerRequest = 1u << 1,  ///< one of the peer's puts it into error
    kInjected = 1u << 2,     ///< a fault with a status was planned on its device
    kEnding = 1u << 3,       ///< it is being closed, reset or disconnected
    kPeerEnding = 1u << 4,   ///< the peer is, or has failed
    kLossy = 1u << 5,        ///< packets may be lost for longer than it repeats them
    kDeviceLost = 1u << 6,
    kCqLost = 1u << 7,       ///< completions may be lost
    kPostRefused = 1u << 8,  ///< the provider may refuse what is posted
    kSessionClosing = 1u << 9,
    kShortOfReceives = 1u << 10,  ///< the peer may lack receives for longer than it repeats
    kPeerDeviceLost = 1u << 11,
    kKept = 1u << 12,  ///< the provider may refuse to destroy it, and then nothing may be completed in its name (H2)
    kModifyFails = 1u << 13,  ///< a change of its state may fail half-way, and put it into error
};

/// In words.
[[nodiscard]] std::string causes(std::uint32_t excuses);

/// What is wrong with a request, by the application's doing.
enum class Defect : std::uint8_t {
    none,
    local_key,   ///< its lkey names nothing
    remote_key,  ///< its rkey names nothing
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
    std::uint64_t pattern = 0;    ///< of its bytes, when it carries any
    std::byte* local = nullptr;   ///< receives and reads: where bytes go
    std::byte* remote = nullptr;  ///< writes: where they go, in the peer's memory
    std::uint64_t before = 0;     ///< atomics: what the word held, as far as this request tells
    std::uint64_t add = 0;
    std::uint32_t slot = 0;        ///< the application's own
    std::uint64_t order = 0;       ///< among its session's requests, or the receives of its shared receive queue
    End* to = nullptr;             ///< datagrams: where they go
    std::uint32_t window_key = 0;  ///< of the window that it goes through, or is to end
    bool way_ends = false;         ///< its address handle was being destroyed when it was submitted
};

/// A message that takes a receive, as its receiver is to find it.
struct Message {
    std::uint64_t tag = 0;  ///< of its request
    std::uint32_t length = 0;
    std::uint32_t imm = 0;
    bool with_imm = false;
    bool of_write = false;  ///< RDMA write with immediate: its bytes are elsewhere
    bool too_long = false;
    std::uint64_t pattern = 0;
};

/// A datagram that was sent and not found. It may be lost where no receive is posted when it comes, and where something
/// else excuses it.
struct Datagram {
    std::uint64_t tag = 0;
    const End* from = nullptr;
    std::uint32_t length = 0;
    std::uint32_t imm = 0;
    bool with_imm = false;
    std::uint64_t pattern = 0;
    std::uint64_t room = 0;  ///< receives that were certainly posted before it was sent, taken ones among them
    bool lost = false;       ///< perhaps: its request has failed, or its receiver's life ended
};

/// What one session has on a send queue. Several may post to one, and the order of theirs among each other is the
/// worker's.
struct Lane {
    std::deque<Request> sends;               ///< in flight, oldest first
    std::deque<Message> messages;            ///< sent, and not yet found by the peer
    std::vector<std::uint64_t> passed_over;  ///< tags of those that the peer has not found, but a later one
    bool failed = false;
};

/// One life of a queue pair.
struct End {
    std::string name;
    std::uint64_t number = 0;
    End* peer = nullptr;
    std::uint32_t excuses = 0;
    bool rnr_for_ever = false;     ///< rnr_retry 7: the want of a receive alone ends nothing
    std::vector<Status> injected;  ///< the statuses of faults that may meet it
    std::vector<Lane> lanes;       ///< one for each session that posts
    std::deque<Request> receives;  ///< in flight, oldest first
    bool receive_failed = false;
    bool datagrams = false;  ///< of a UD queue pair: no peer
    std::uint32_t qp_num = 0;
    std::deque<Datagram> arriving;  ///< in the order they were submitted
    std::uint64_t datagrams_found = 0;
    const End* found_from = nullptr;    ///< the sender of the last
    std::uint64_t receives_posted = 0;  ///< receives up to this Request::order certainly are
    std::uint64_t shared_taken = 0;     ///< Request::order of the last that it took from a shared receive queue
    std::uint64_t messages_done = 0;    ///< of those sent, the ones that succeeded
    std::uint64_t messages_found = 0;   ///< by the peer
    std::uint64_t added = 0;            ///< to the peer's word by atomics that succeeded
    std::uint64_t added_perhaps = 0;    ///< by those that failed

    [[nodiscard]] bool sends_in_flight() const noexcept;
    /// Something that goes through that window.
    [[nodiscard]] bool uses_window(std::uint32_t key) const noexcept;
};

/// A shared receive queue. It goes on when queue pairs that take from it end.
struct SharedQueue {
    std::string name;
    SrqHandle handle{};
    std::uint32_t excuses = 0;     ///< kEnding: it is being closed
    std::deque<Request> receives;  ///< in flight, oldest first
    std::uint64_t submitted = 0;
    std::uint64_t taken = 0;  ///< Request::order of the last that any queue pair took
};

[[nodiscard]] std::string_view opcode_name(Opcode opcode) noexcept;

/// Bytes that tell a message, and their place in it, from all others.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t pattern) noexcept;
[[nodiscard]] bool has_pattern(std::span<const std::byte> bytes, std::uint64_t pattern) noexcept;

class Model {
public:
    explicit Model(Trace& trace) : trace_(trace) {}

    /// A packet was lost, or will be. Requests survive that, but the answer to one that cannot succeed may be that
    /// packet: the peer, in error then, answers no repeat.
    bool packets_lost = false;
    /// One was late, or will be: so those of one sender may come in another order.
    bool packets_late = false;

    /// A new life, of a queue pair that so many sessions post to.
    End& begin(std::string name, std::size_t lanes);
    void connect(End& a, End& b);
    /// Datagrams name a number and no life: those that were on their way to `before` may be found by the life after it.
    void inherit(End& end, End& before);
    void excuse(End& end, std::uint32_t excuses);

    using OnRetired = std::function<void(const Request&)>;

    /// It is about to be given to the runtime, by this lane's session, and may be with the peer before that call is
    /// over. Receives have no lane.
    void submitting(End& end, std::size_t lane, const Request& request);
    /// The runtime did not take it.
    void refused(End& end, std::size_t lane, const Request& request);
    /// The runtime says that it has ended. Returns it, and gives `on_retired` all unsignaled ones that this ends too.
    Request completed(End& end, std::size_t lane, const Completion& completion, const OnRetired& on_retired);

    SharedQueue& begin_shared(std::string name, SrqHandle handle);
    void excuse(SharedQueue& queue, std::uint32_t excuses) { queue.excuses |= excuses; }
    void submitting(SharedQueue& queue, Request request);
    void refused(SharedQueue& queue);
    /// `end` is the life of the queue pair that the completion names; null when it names none.
    Request completed(SharedQueue& queue, End* end, const Completion& completion);
    /// Nothing more comes from it. Returns how many are in flight for ever.
    [[nodiscard]] std::size_t over(const SharedQueue& queue) const;

    /// So many more of the lane's unsignaled requests have succeeded, as the session counts them. Returns how many of
    /// these are the oldest, and ended by this.
    std::uint32_t retired(End& end, std::size_t lane, std::uint32_t more, const OnRetired& on_retired);
    /// Nothing more comes to this lane: what is left is unsignaled and has succeeded. Returns how many are in flight
    /// for ever, since the provider keeps the queue pair.
    std::size_t over(End& end, std::size_t lane, const OnRetired& on_retired);
    /// What was sent was found, or something went wrong.
    [[nodiscard]] bool rests(const End& end) const;
    /// Both ends have had the time to get there.
    void at_rest(const End& end) const;
    /// All work is over: `word` is what the peer's atomics made of it.
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
