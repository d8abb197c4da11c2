// The baseline: plain verbs on the calling thread, as a careful program without a runtime would use them.
//
// Requests are built once and posted again and again. Receives are posted ahead. A send is inline if it is small.
// Only every kSignalEvery-th send and the last of a run are signaled, unless each needs its completion. All queues of
// this process complete on one CQ, so that one poll sees all completions. On a software device the poll also makes the
// device progress.
//
// Thread safety: one thread uses an object.
// Errors: MeasurementError for failures while measuring, pollcore::Error for failures of the set-up.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include <infiniband/verbs.h>

#include "device/device.hpp"
#include "direct_link.hpp"
#include "path_setup.hpp"
#include "payload.hpp"
#include "watch.hpp"
#include "workload.hpp"

namespace pollcore::perf {

class DirectPath {
public:
    static constexpr PathKind kKind = PathKind::direct;
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return Watch::kSpinsPerLook; }

    /// The device must outlive the path.
    DirectPath(Device& device, const PathSetup& setup);
    ~DirectPath();
    DirectPath(const DirectPath&) = delete;
    DirectPath& operator=(const DirectPath&) = delete;

    // ---- set-up: direct_path.cc ----

    /// Connects the two ends of this process with each other.
    void connect_ends();
    /// Connects to a server over the network. Returns the private data of the server's answer.
    std::vector<std::byte> connect(const std::string& address, const std::vector<std::byte>& private_data,
                                   std::chrono::milliseconds timeout);
    /// Listens for clients. Returns the address with the actual port.
    std::string listen(const std::string& address);
    [[nodiscard]] std::optional<PeerRequest> next_request(std::chrono::milliseconds timeout);
    void accept(const std::vector<std::byte>& private_data, std::chrono::milliseconds timeout);
    void reject(const std::vector<std::byte>& private_data);
    [[nodiscard]] bool peer_left();
    void disconnect(std::chrono::milliseconds timeout);

    [[nodiscard]] RemoteBlock own_block(unsigned end) const;
    void prepare(const Workload& workload);
    /// Posts one operation that is not timed.
    void post_once(Op op);
    /// Calls post_once() and waits for the completion.
    template <class Watch>
    void run_once(Op op, Watch& watch) {
        post_once(op);
        watch.until(*this, kNear, "an operation that checks the data", [this] { return ends_[kNear].idle(); });
    }

    // ---- for the timed loops ----

    [[nodiscard]] EndState& end(unsigned index) noexcept { return ends_[index]; }
    [[nodiscard]] const EndLayout& layout() const noexcept { return layout_; }
    /// The message with this number, counted from 0. Its receive must not have been posted again.
    [[nodiscard]] const std::byte* received(unsigned index, std::uint64_t number) const noexcept {
        return ends_[index].memory + layout_.slot(number);
    }

    void issue(unsigned index, bool last) {
        EndState& state = ends_[index];
        Requests& requests = *requests_[index];
        ibv_send_wr& wr = requests.send;
        const bool signaled = always_signal_ || last || (state.issued & (kSignalEvery - 1)) == kSignalEvery - 1;
        wr.send_flags = send_flags_ | (signaled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u);
        ibv_send_wr* bad = nullptr;
        const int error = ibv_post_send(requests.qp.get(), &wr, &bad);
        if (error != 0) [[unlikely]] {
            fail_post(index, "ibv_post_send", error);
        }
        ++state.issued;
        state.signaled += signaled;
    }

    /// Posts the oldest kRepostBatch receives again.
    void repost(unsigned index) {
        EndState& state = ends_[index];
        Requests& requests = *requests_[index];
        ibv_recv_wr* bad = nullptr;
        const int error = ibv_post_recv(requests.qp.get(), &requests.receives[state.reposted % kReceiveSlots], &bad);
        if (error != 0) [[unlikely]] {
            fail_post(index, "ibv_post_recv", error);
        }
        state.reposted += kRepostBatch;
    }

    void poll() { (void)take(); }
    /// Polls the CQ. Returns the number of completions.
    int take() {
        std::array<ibv_wc, kPollBatch> wcs;
        const int n = ibv_poll_cq(cq_.get(), kPollBatch, wcs.data());
        for (int i = 0; i < n; ++i) {
            const ibv_wc& wc = wcs[static_cast<std::size_t>(i)];
            if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
                fail_completion(wc);
            }
            EndState& state = ends_[wc.wr_id & kEndBit];
            ++((wc.wr_id & kReceiveBit) != 0 ? state.received : state.completed);
        }
        if (n < 0) [[unlikely]] {
            fail_poll(n);
        }
        return n;
    }
    /// Sleeps until a request may have completed, for at most kSleepMax. Only for a path with Waiting::sleep.
    void sleep();

    [[nodiscard]] std::uint64_t send_doorbells() const noexcept { return ends_[0].issued + ends_[1].issued; }
    [[nodiscard]] std::uint64_t receive_doorbells() const noexcept {
        return (ends_[0].reposted + ends_[1].reposted) / kRepostBatch;
    }

    // ---- when a wait takes long ----

    void look_after_peer(unsigned index, const char* what);
    [[nodiscard]] std::string stalled(unsigned index, const char* what, std::chrono::milliseconds timeout) const;

private:
    static constexpr int kPollBatch = 4;
    // The bits of a wr_id: the index of the end, and whether the request is a receive.
    static constexpr std::uint64_t kEndBit = 1;
    static constexpr std::uint64_t kReceiveBit = 2;

    struct Requests {
        UniqueQp qp;
        ibv_send_wr send{};
        ibv_sge send_sge{};
        std::array<ibv_recv_wr, kReceiveSlots> receives{};  ///< linked into chains of kRepostBatch requests
        std::array<ibv_sge, kReceiveSlots> receive_sges{};
    };
    struct MemoryFree {
        void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kMemoryAlignment); }
    };
    static constexpr std::align_val_t kMemoryAlignment{4096};

    void create_end(unsigned index, const PathSetup& setup);
    void build(Op op, unsigned index, ibv_send_wr& wr, ibv_sge& sge) const;
    [[nodiscard]] std::string name_of(unsigned index) const;
    [[noreturn, gnu::cold, gnu::noinline]] void fail_post(unsigned index, const char* call, int error);
    [[noreturn, gnu::cold, gnu::noinline]] void fail_completion(const ibv_wc& wc);
    [[noreturn, gnu::cold, gnu::noinline]] void fail_poll(int result);

    // Members are destroyed from the bottom: the connection first, then the QPs, and then the objects that the QPs use.
    Device& device_;
    EndLayout layout_;
    std::string gid_;
    unsigned ends_used_ = 0;
    std::unique_ptr<ThreadDomain> domain_;
    std::unique_ptr<std::byte[], MemoryFree> memory_;
    std::unique_ptr<CompletionChannel> channel_;
    UniquePd pd_;
    UniqueMr mr_;
    Workload workload_;
    // Used in the timed loops.
    UniqueCq cq_;
    std::uint32_t unacknowledged_ = 0;
    std::array<std::unique_ptr<Requests>, 2> requests_;
    std::array<EndState, 2> ends_{};
    unsigned send_flags_ = 0;
    bool always_signal_ = false;

    std::unique_ptr<DirectLink> link_;  ///< null if the ends are connected with each other
};

/// A direct path whose thread sleeps on a completion channel: it calls ibv_req_notify_cq, polls once more, and then
/// waits for an event of the channel.
class EventPath : public DirectPath {
public:
    static constexpr PathKind kKind = PathKind::event;
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return 1; }

    using DirectPath::DirectPath;

    void poll() {
        if (take() == 0) {
            sleep();
        }
    }
};

}  // namespace pollcore::perf
