// The operations through the runtime: a session on the calling thread, and its worker.
//
// As on the direct path, requests are built once, receives are posted ahead, small sends are inline, and only every
// kSignalEvery-th send and the last of a run are signaled, unless each needs its completion.
//
// Thread safety: one thread uses an object.
// Errors: MeasurementError for failures while measuring, pollcore::Error for failures of the set-up.
#pragma once

#include <sched.h>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "path_setup.hpp"
#include "payload.hpp"
#include "pollcore/context.hpp"
#include "watch.hpp"
#include "workload.hpp"

namespace pollcore::perf {

class RuntimePath {
public:
    static constexpr PathKind kKind = PathKind::runtime;

    /// The runtime must outlive the path. `worker_thread` returns the kernel's id of the thread of the worker with this
    /// index, or 0 if the thread belongs to another process.
    RuntimePath(Context& runtime, const std::function<int(std::uint32_t)>& worker_thread, const std::string& device,
                const std::string& worker, const PathSetup& setup);
    RuntimePath(const RuntimePath&) = delete;
    RuntimePath& operator=(const RuntimePath&) = delete;

    // ---- set-up: runtime_path.cc; described in direct_path.hpp ----

    void connect_ends();
    std::vector<std::byte> connect(const std::string& address, const std::vector<std::byte>& private_data,
                                   std::chrono::milliseconds timeout);
    std::string listen(const std::string& address);
    [[nodiscard]] std::optional<PeerRequest> next_request(std::chrono::milliseconds timeout);
    void accept(const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout);
    void reject(const std::vector<std::byte>& private_data);
    [[nodiscard]] bool peer_left() const { return over_network_ && qps_[kNear].disconnected(); }
    void disconnect(std::chrono::milliseconds timeout);

    [[nodiscard]] RemoteBlock own_block(unsigned end) const;
    void prepare(const Workload& workload);
    void post_once(Op op);
    template <class Watch>
    void run_once(Op op, Watch& watch) {
        post_once(op);
        watch.until(*this, kNear, "an operation that checks the data", [this] { return ends_[kNear].idle(); });
    }

    // ---- for the timed loops ----

    [[nodiscard]] EndState& end(unsigned index) noexcept { return ends_[index]; }
    [[nodiscard]] const EndLayout& layout() const noexcept { return layout_; }
    [[nodiscard]] const std::byte* received(unsigned index, std::uint64_t number) const noexcept {
        return rings_[index].valid() ? rings_[index].message(records_[index][number % kReceiveSlots]).data()
                                     : ends_[index].memory + layout_.slot(number);
    }

    void issue(unsigned index, bool last) {
        EndState& state = ends_[index];
        const bool signaled = always_signal_ || last || (state.issued & (kSignalEvery - 1)) == kSignalEvery - 1;
        const WorkRequest& request = sends_[index][signaled];
        const Refusal refusal =
            inlined_ ? session_.try_submit_inline(request, {state.memory + EndLayout::out(), workload_.size})
                     : session_.try_submit(request);
        if (refusal != Refusal::none) [[unlikely]] {
            fail_submit(index, refusal);
        }
        ++state.issued;
        state.signaled += signaled;
    }

    void repost(unsigned index) {
        EndState& state = ends_[index];
        if (rings_[index].valid()) {
            give_records_back(index);
            return;
        }
        const std::span<const WorkRequest> batch(&receives_[index][state.reposted % kReceiveSlots], kRepostBatch);
        const Submitted submitted = session_.try_submit(batch);
        if (submitted.accepted < batch.size()) [[unlikely]] {
            fail_submit(index, submitted.refusal);
        }
        state.reposted += kRepostBatch;
    }

    [[nodiscard]] std::uint32_t spins_per_look() const noexcept {
        return wait_ == Waiting::sleep ? 1 : Watch::kSpinsPerLook;
    }

    void poll() {
        // A loop that waits for the peer's write must not wait here, because that write makes no completion.
        const bool waits_here = wait_ == Waiting::spin && !awaits_memory_;
        const std::size_t n =
            waits_here ? session_.poll(completions_, std::chrono::nanoseconds(0)) : session_.poll(completions_);
        if (n == 0 && wait_ != Waiting::spin) {
            wait_a_while();
        }
        for (std::size_t i = 0; i < n; ++i) {
            const Completion& completion = completions_[i];
            if (!completion.ok()) [[unlikely]] {
                fail_completion(completion);
            }
            if (completion.pooled()) {
                take_record(completion);
                continue;
            }
            EndState& state = ends_[completion.tag];
            ++(completion.from_recv_queue() ? state.received : state.completed);
        }
    }

    [[nodiscard]] std::uint64_t send_doorbells() const { return counters().send_doorbells.value(); }
    [[nodiscard]] std::uint64_t receive_doorbells() const { return counters().receive_doorbells.value(); }
    [[nodiscard]] StageLatency stage_latency() const noexcept { return session_.stage_latency(); }
    /// The kernel's id of the worker's thread, or 0 if the worker belongs to another process.
    [[nodiscard]] int worker_thread_id() const noexcept { return worker_thread_; }

    // ---- when a wait takes long ----

    void look_after_peer(unsigned index, const char* what);
    [[nodiscard]] std::string stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const;

private:
    static constexpr std::size_t kPollBatch = 4;

    [[nodiscard]] const WorkerCounters& counters() const { return runtime_.worker_counters(session_.worker()); }
    void wait_a_while() noexcept {
        if (wait_ == Waiting::sleep) {
            (void)session_.wait(Watch::kSleepMax);
        } else {
            (void)::sched_yield();
        }
    }
    void build(Op op, unsigned index, WorkRequest& request) const;
    [[nodiscard]] unsigned end_of(const Completion& completion) const noexcept {
        return completion.qp == qps_[kNear].handle() ? kNear : kFar;
    }
    void take_record(const Completion& completion) {
        const unsigned index = end_of(completion);
        records_[index][ends_[index].received++ % kReceiveSlots] = completion;
    }
    void give_records_back(unsigned index);
    [[nodiscard]] std::string name_of(unsigned index) const;
    [[noreturn, gnu::cold, gnu::noinline]] void fail_submit(unsigned index, Refusal refusal);
    [[noreturn, gnu::cold, gnu::noinline]] void fail_completion(const Completion& completion);

    // Members are destroyed from the bottom: the QPs before the memory that their work requests use.
    Context& runtime_;
    std::string device_;
    EndLayout layout_;
    unsigned ends_used_ = 0;
    bool over_network_ = false;
    MemoryRegion memory_;
    Workload workload_;
    // Used in the timed loops.
    Session session_;
    std::array<Completion, kPollBatch> completions_;  ///< a member, because poll() would clear a local array each time
    int worker_thread_ = 0;
    Waiting wait_ = Waiting::spin;
    bool awaits_memory_ = false;
    bool inlined_ = false;
    bool always_signal_ = false;
    std::array<EndState, 2> ends_{};
    std::array<std::array<WorkRequest, 2>, 2> sends_{};  ///< for each end: the unsignaled and the signaled request
    std::array<std::array<WorkRequest, kReceiveSlots>, 2> receives_{};

    std::array<ReceivePool, 2> rings_;  ///< for each end: its write ring; valid with FlowControl::ring
    std::array<std::array<Completion, kReceiveSlots>, 2> records_{};
    std::array<QueuePair, 2> qps_;
    Listener listener_;
    std::optional<ConnectionRequest> request_;
};

/// A RuntimePath whose runtime is an Attachment.
class AttachedPath final : public RuntimePath {
public:
    static constexpr PathKind kKind = PathKind::attached;
    using RuntimePath::RuntimePath;
};

}  // namespace pollcore::perf
