// The baseline: plain verbs on the calling thread, as a careful program without a runtime would use them.
//
// Requests are built once and posted again and again. Receives are posted ahead. A message is inline if it is small.
// Only some requests are signaled (Workload::signal_every), unless each needs its completion. All queues of a path
// complete on one CQ, so that one poll sees all completions. On a software device the poll also makes the device
// progress.
//
// Thread safety: one thread uses an object.
// Errors: MeasurementError for failures while measuring, pollcore::Error for failures of the set-up.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <infiniband/verbs.h>

#include "device/device.hpp"
#include "pollperf/measure/watch.hpp"
#include "pollperf/measure/workload.hpp"
#include "pollperf/paths/direct_link.hpp"
#include "pollperf/paths/end_state.hpp"
#include "pollperf/paths/path_setup.hpp"

namespace pollcore::perf {

class DirectPath {
public:
    static constexpr PathKind kKind = PathKind::direct;

    /// The device must outlive the path.
    DirectPath(Device& device, const PathSetup& setup);
    ~DirectPath();
    DirectPath(const DirectPath&) = delete;
    DirectPath& operator=(const DirectPath&) = delete;

    // ---- set-up: direct_path.cc ----

    [[nodiscard]] std::vector<EndInfo> own_ends() const;
    /// Connects each end with the peer's end of the same index, without rdma_cm.
    void connect(std::span<const EndInfo> peers);
    /// Connects an end by rdma_cm to a server. Returns the private data of the server's answer.
    std::vector<std::byte> connect(unsigned end, const std::string& address, const std::vector<std::byte>& private_data,
                                   std::chrono::milliseconds timeout);
    /// Listens for connections by rdma_cm. Returns the address with the actual port.
    std::string listen(const std::string& address);
    [[nodiscard]] std::optional<PeerRequest> next_request(std::chrono::milliseconds timeout);
    void accept(unsigned end, const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout);
    void reject(const std::vector<std::byte>& private_data);
    /// Whether the other side of a connection by rdma_cm has left.
    [[nodiscard]] bool peer_left();
    void disconnect(std::chrono::milliseconds timeout);

    /// Another thread may use the path next.
    void hand_over() noexcept {}
    /// Gets ready for the loops. All earlier requests must be done.
    void prepare(const Workload& workload);
    /// Posts one operation that is not timed, and is signaled.
    void post_once(Op op, unsigned end);

    // ---- for the measuring loops ----

    [[nodiscard]] unsigned ends() const noexcept { return static_cast<unsigned>(ends_.size()); }
    [[nodiscard]] EndState& end(unsigned index) noexcept { return ends_[index]; }
    [[nodiscard]] const EndLayout& layout() const noexcept { return layout_; }
    /// The bytes of the received message with this number, counted from 0 over all workloads. Its receive must not have
    /// been posted again.
    [[nodiscard]] const std::byte* received(unsigned index, std::uint64_t number) const noexcept {
        return ends_[index].memory + layout_.receive(number) + layout_.receive_offset;
    }
    [[nodiscard]] bool repost_due(unsigned index) const noexcept {
        return ends_[index].reposted + repost_batch_ <= ends_[index].received + layout_.receive_slots;
    }

    /// Posts the end's next `n` requests with one call; n is at most PathSetup::post_list. With `last`, the last of
    /// them is signaled. Returns how many were posted, which is all of them.
    std::uint32_t issue(unsigned index, std::uint32_t n, bool last) {
        EndState& state = ends_[index];
        Requests& requests = *requests_[index];
        if (requests.chained != n) [[unlikely]] {
            chain(requests, n);
        }
        for (std::uint32_t i = 0; i < n; ++i) {
            ibv_send_wr& wr = requests.sends[i];
            const bool signaled = (last && i + 1 == n) || --state.until_signal == 0;
            if (signaled) {
                state.until_signal = workload_.signal_every;
            }
            wr.send_flags = send_flags_ | (signaled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u);
            wr.wr_id = RequestId::send(index, state.issued + i);
            if (changing_) {
                change(index, wr, state.issued + i);
            }
        }
        ibv_send_wr* bad = nullptr;
        const int error = ibv_post_send(requests.qp.get(), requests.sends.data(), &bad);
        if (error != 0) [[unlikely]] {
            fail_post(index, "ibv_post_send", error);
        }
        state.issued += n;
        ++send_doorbells_;
        return n;
    }

    /// Posts the oldest receives again, as many as repost_batch() says.
    void repost(unsigned index) {
        EndState& state = ends_[index];
        Requests& requests = *requests_[index];
        ibv_recv_wr* bad = nullptr;
        const int error =
            ibv_post_recv(requests.qp.get(), &requests.receives[state.reposted % layout_.receive_slots], &bad);
        if (error != 0) [[unlikely]] {
            fail_post(index, "ibv_post_recv", error);
        }
        state.reposted += repost_batch_;
        ++receive_doorbells_;
    }

    /// Polls, for a loop that has something else to do.
    std::size_t poll() { return take(); }
    /// Polls, for a loop that has nothing else to do within `patience`. EventPath then sleeps; with Waiting::yield this
    /// path gives up its CPU, if another thread has to run.
    std::size_t poll(std::chrono::nanoseconds) {
        const std::size_t n = take();
        if (n == 0 && yields_) [[unlikely]] {
            give_up_cpu();
        }
        return n;
    }
    /// Waits between two polls have no system call, so that a loop need not look at the clock each time.
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return Watch::kSpinsPerLook; }

    [[nodiscard]] std::uint64_t send_doorbells() const noexcept { return send_doorbells_; }
    [[nodiscard]] std::uint64_t receive_doorbells() const noexcept { return receive_doorbells_; }

    // ---- when a wait takes long ----

    void look_after_peer(unsigned index, const char* what);
    [[nodiscard]] std::string stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const;

protected:
    std::size_t take() {
        std::array<ibv_wc, kPollBatch> wcs;
        const int n = ibv_poll_cq(cq_.get(), kPollBatch, wcs.data());
        for (int i = 0; i < n; ++i) {
            const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
            if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
                fail_completion(wc);
            }
            const RequestId id{wc.wr_id};
            EndState& state = ends_[id.end()];
            if (id.is_receive()) {
                ++state.received;
            } else {
                state.completed = id.number() + 1;
            }
        }
        if (n < 0) [[unlikely]] {
            fail_poll(n);
        }
        return static_cast<std::size_t>(n);
    }
    /// Sleeps until a request may have completed, for at most `patience`. Only with Waiting::sleep.
    void sleep(std::chrono::nanoseconds patience);
    /// Whether the loop waits for the peer's write, of which no event tells.
    [[nodiscard]] bool awaits_memory() const noexcept { return workload_.op == Op::write && !workload_.one_sided; }
    static void give_up_cpu() noexcept;

private:
    static constexpr int kPollBatch = 16;

    struct Requests {
        UniqueAh ah;  ///< of the peer, on UD
        std::uint32_t peer_qp_num = 0;
        std::uint32_t peer_qkey = 0;
        UniqueQp qp;
        std::uint32_t chained = 0;  ///< so many requests of `sends` are linked
        std::vector<ibv_send_wr> sends;
        std::vector<ibv_sge> send_sges;
        std::vector<ibv_recv_wr> receives;  ///< linked into chains of repost_batch()
        std::vector<ibv_sge> receive_sges;
    };
    struct MemoryFree {
        void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kMemoryAlignment); }
    };
    static constexpr std::align_val_t kMemoryAlignment{4096};

    void create_end(unsigned index, const PathSetup& setup);
    void connect_datagrams(unsigned index, const EndInfo& peer, const GidEntry& gid);
    void build(Op op, unsigned index, ibv_send_wr& wr, ibv_sge& sge) const;
    static void chain(Requests& requests, std::uint32_t n);
    /// Sets the parts of a request that differ from one to the next.
    void change(unsigned index, ibv_send_wr& wr, std::uint64_t number) {
        const EndState& state = ends_[index];
        wr.sg_list->addr = reinterpret_cast<std::uintptr_t>(state.memory + layout_.out(number));
        if (workload_.op == Op::write || workload_.op == Op::write_imm) {
            wr.wr.rdma.remote_addr =
                state.remote.addr + (number - state.issued_before) % layout_.in_slots * layout_.stride;
        } else if (workload_.op == Op::compare_swap) {
            wr.wr.atomic.compare_add = number - state.issued_before;
            wr.wr.atomic.swap = wr.wr.atomic.compare_add + 1;
        }
    }
    [[nodiscard]] std::string_view own_name() const noexcept {
        return path_name(channel_ ? PathKind::event : PathKind::direct);
    }
    [[nodiscard]] std::string name_of(unsigned index) const;
    [[noreturn, gnu::cold, gnu::noinline]] void fail_post(unsigned index, const char* call, int error);
    [[noreturn, gnu::cold, gnu::noinline]] void fail_completion(const ibv_wc& first);
    [[noreturn, gnu::cold, gnu::noinline]] void fail_poll(int result);

    // Members are destroyed from the bottom: the connections first, then the QPs, and then the objects that the QPs
    // use.
    Device& device_;
    EndLayout layout_;
    QpType transport_;
    std::string gid_;
    std::uint16_t mtu_ = 0;
    std::unique_ptr<ThreadDomain> domain_;
    std::unique_ptr<std::byte[], MemoryFree> memory_;
    std::unique_ptr<CompletionChannel> channel_;
    UniquePd pd_;
    UniqueMr mr_;
    // Used in the loops.
    Workload workload_;
    UniqueCq cq_;
    std::uint32_t unacknowledged_ = 0;
    std::uint32_t repost_batch_ = 1;
    unsigned send_flags_ = 0;
    bool changing_ = false;  ///< requests differ from one to the next
    bool yields_ = false;
    std::uint64_t send_doorbells_ = 0;
    std::uint64_t receive_doorbells_ = 0;
    std::vector<std::unique_ptr<Requests>> requests_;
    std::vector<EndState> ends_;

    std::unique_ptr<DirectLink> link_;  ///< null without rdma_cm
};

/// A direct path whose thread sleeps on a completion channel: it calls ibv_req_notify_cq, polls once more, and then
/// waits for an event of the channel.
class EventPath : public DirectPath {
public:
    static constexpr PathKind kKind = PathKind::event;
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return 1; }

    using DirectPath::DirectPath;

    using DirectPath::poll;
    std::size_t poll(std::chrono::nanoseconds patience) {
        const std::size_t n = take();
        if (n == 0) {
            awaits_memory() ? give_up_cpu() : sleep(patience);
        }
        return n;
    }
};

}  // namespace pollcore::perf
