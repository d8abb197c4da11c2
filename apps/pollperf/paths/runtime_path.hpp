// The operations through the runtime: sessions of the calling thread, and their workers.
//
// As on the direct path, requests are built once, receives are posted ahead, small messages are inline, and only some
// requests are signaled, unless each needs its completion.
//
// Thread safety: one thread uses an object.
// Errors: MeasurementError for failures while measuring, pollcore::Error for failures of the set-up.
#pragma once

#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pollcore/context.hpp"
#include "pollperf/measure/watch.hpp"
#include "pollperf/measure/workload.hpp"
#include "pollperf/paths/end_state.hpp"
#include "pollperf/paths/path_setup.hpp"

namespace pollcore::perf {

class RuntimePath {
public:
    static constexpr PathKind kKind = PathKind::runtime;

    /// The runtime must outlive the path. `device` is its name in the configuration. Messages call the path `kind`.
    RuntimePath(Context& runtime, const std::string& device, const PathSetup& setup, PathKind kind = PathKind::runtime);
    RuntimePath(const RuntimePath&) = delete;
    RuntimePath& operator=(const RuntimePath&) = delete;

    // ---- set-up: runtime_path.cc; described in direct_path.hpp ----

    [[nodiscard]] std::vector<EndInfo> own_ends() const;
    void connect(std::span<const EndInfo> peers);
    std::vector<std::byte> connect(unsigned end, const std::string& address, const std::vector<std::byte>& private_data,
                                   std::chrono::milliseconds timeout);
    std::string listen(const std::string& address);
    [[nodiscard]] std::optional<PeerRequest> next_request(std::chrono::milliseconds timeout);
    void accept(unsigned end, const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout);
    void reject(const std::vector<std::byte>& private_data);
    [[nodiscard]] bool peer_left() const;
    void disconnect(std::chrono::milliseconds timeout);

    /// Another thread may use the path next.
    void hand_over() noexcept;
    void prepare(const Workload& workload);
    void post_once(Op op, unsigned end);

    // ---- for the measuring loops ----

    [[nodiscard]] unsigned ends() const noexcept { return static_cast<unsigned>(ends_.size()); }
    [[nodiscard]] EndState& end(unsigned index) noexcept { return ends_[index]; }
    [[nodiscard]] const EndLayout& layout() const noexcept { return layout_; }
    [[nodiscard]] const std::byte* received(unsigned index, std::uint64_t number) const noexcept {
        const Requests& requests = requests_[index];
        return requests.ring.valid() ? requests.ring.message(requests.records[number % layout_.receive_slots]).data()
                                     : ends_[index].memory + layout_.receive(number) + layout_.receive_offset;
    }
    [[nodiscard]] bool repost_due(unsigned index) const noexcept {
        return ends_[index].reposted + repost_batch_ <= ends_[index].received + layout_.receive_slots;
    }

    /// Submits the end's next `n` requests with one call. Returns how many were taken: fewer if there is no room now.
    std::uint32_t issue(unsigned index, std::uint32_t n, bool last) {
        EndState& state = ends_[index];
        Requests& requests = requests_[index];
        const std::uint32_t until_signal = state.until_signal;
        for (std::uint32_t i = 0; i < n; ++i) {
            WorkRequest& request = requests.sends[i];
            const bool signaled = (last && i + 1 == n) || --state.until_signal == 0;
            if (signaled) {
                state.until_signal = workload_.signal_every;
            }
            request.flags = static_cast<std::uint8_t>(flags_ | (signaled ? kSignaled : 0));
            request.tag = RequestId::send(index, state.issued + i);
            if (changing_) {
                change(index, request, state.issued + i);
            }
        }
        Submitted submitted;
        if (n == 1) {
            submitted.refusal = workload_.inlined
                                    ? requests.session->try_submit_inline(
                                          requests.sends[0], {state.memory + layout_.out(state.issued), workload_.size})
                                    : requests.session->try_submit(requests.sends[0]);
            submitted.accepted = submitted.refusal == Refusal::none;
        } else {
            submitted = requests.session->try_submit(std::span(requests.sends).first(n));
        }
        if (submitted.accepted < n) [[unlikely]] {
            take_back(index, submitted, until_signal);
        }
        state.issued += submitted.accepted;
        return static_cast<std::uint32_t>(submitted.accepted);
    }

    void repost(unsigned index) {
        EndState& state = ends_[index];
        Requests& requests = requests_[index];
        if (requests.ring.valid()) {
            give_records_back(index);
            return;
        }
        const std::span<const WorkRequest> batch(&requests.receives[state.reposted % layout_.receive_slots],
                                                 repost_batch_);
        const Submitted submitted = requests.session->try_submit(batch);
        if (submitted.accepted < batch.size()) [[unlikely]] {
            fail_submit(index, submitted.refusal);
        }
        state.reposted += repost_batch_;
    }

    std::size_t poll() {
        std::size_t n = 0;
        for (Session& session : sessions_) {
            n += take(session.poll(completions_));
        }
        return n;
    }
    std::size_t poll(std::chrono::nanoseconds patience) {
        // A loop that waits for the peer's write must not wait in the session, because that write makes no completion.
        // Where it would sleep, it gives up its CPU.
        if (sessions_.size() == 1 && wait_ == Waiting::spin && !awaits_memory_) {
            return take(sessions_.front().poll(completions_, std::chrono::nanoseconds(0)));
        }
        const std::size_t n = poll();
        if (n == 0 && wait_ != Waiting::spin) {
            wait_a_while(patience);
        }
        return n;
    }
    [[nodiscard]] std::uint32_t spins_per_look() const noexcept {
        return wait_ == Waiting::sleep ? 1 : Watch::kSpinsPerLook;
    }

    /// Of all workers of the runtime.
    [[nodiscard]] std::uint64_t send_doorbells() const;
    [[nodiscard]] std::uint64_t receive_doorbells() const;
    [[nodiscard]] StageLatency stage_latency() const noexcept;

    // ---- when a wait takes long ----

    void look_after_peer(unsigned index, const char* what);
    [[nodiscard]] std::string stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const;

private:
    static constexpr std::size_t kPollBatch = 16;

    struct Requests {
        Session* session = nullptr;
        std::uint64_t source = 0;  ///< where the outgoing buffers begin, as work requests name it
        std::vector<WorkRequest> sends;
        std::vector<WorkRequest> receives;
        ReceivePool ring;                 ///< valid with FlowControl::ring
        std::vector<Completion> records;  ///< the ring's messages that were not given back yet
        AddressHandle ah;                 ///< of the peer, on UD
        EndInfo peer;
    };

    std::size_t take(std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            const Completion& completion = completions_[i];
            if (!completion.ok()) [[unlikely]] {
                fail_completion(completion);
            }
            if (completion.pooled()) {
                take_record(completion);
                continue;
            }
            const RequestId id{completion.tag};
            EndState& state = ends_[id.end()];
            if (id.is_receive()) {
                ++state.received;
            } else {
                state.completed = id.number() + 1;
            }
        }
        return n;
    }
    void wait_a_while(std::chrono::nanoseconds patience) noexcept;
    void create_end(unsigned index, const PathSetup& setup);
    void build(Op op, unsigned index, WorkRequest& request) const;
    void change(unsigned index, WorkRequest& request, std::uint64_t number) {
        const EndState& state = ends_[index];
        request.sge.addr = requests_[index].source + layout_.out(number);
        if (workload_.op == Op::write || workload_.op == Op::write_imm) {
            request.remote_addr =
                state.remote.addr + (number - state.issued_before) % layout_.in_slots * layout_.stride;
        } else if (workload_.op == Op::compare_swap) {
            request.compare_add = number - state.issued_before;
            request.swap = request.compare_add + 1;
        }
    }
    [[nodiscard]] unsigned end_of(QpHandle qp) const noexcept;
    void take_record(const Completion& completion) {
        const unsigned index = end_of(completion.qp);
        requests_[index].records[ends_[index].received++ % layout_.receive_slots] = completion;
    }
    void give_records_back(unsigned index);
    /// Restores the count to the next signal after only some requests were taken. Throws if no room is not the reason.
    [[gnu::cold, gnu::noinline]] void take_back(unsigned index, const Submitted& submitted, std::uint32_t until_signal);
    [[nodiscard]] std::string name_of(unsigned index) const;
    [[noreturn, gnu::cold, gnu::noinline]] void fail_submit(unsigned index, Refusal refusal);
    [[noreturn, gnu::cold, gnu::noinline]] void fail_completion(const Completion& completion);

    // Members are destroyed from the bottom: the QPs before the memory that their work requests use.
    PathKind kind_;
    Context& runtime_;
    std::string device_;
    EndLayout layout_;
    QpType transport_;
    std::uint16_t mtu_ = 0;
    bool over_network_ = false;
    MemoryRegion memory_;
    // Used in the loops.
    Workload workload_;
    std::vector<Session> sessions_;
    std::array<Completion, kPollBatch> completions_;  ///< a member, because poll() would clear a local array each time
    Waiting wait_ = Waiting::spin;
    bool awaits_memory_ = false;
    bool changing_ = false;
    std::uint8_t flags_ = 0;
    std::uint32_t repost_batch_ = 1;
    std::vector<EndState> ends_;
    std::vector<Requests> requests_;

    std::vector<QueuePair> qps_;
    Listener listener_;
    std::optional<ConnectionRequest> request_;
};

/// A RuntimePath whose runtime is an Attachment.
class AttachedPath final : public RuntimePath {
public:
    static constexpr PathKind kKind = PathKind::attached;
    AttachedPath(Context& runtime, const std::string& device, const PathSetup& setup)
        : RuntimePath(runtime, device, setup, kKind) {}
};

}  // namespace pollcore::perf
