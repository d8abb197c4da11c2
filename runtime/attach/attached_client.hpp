// One attached process, as the daemon's control thread sees it: its objects, its limits, and its requests that take
// time.
//
// Its messages are hostile. Each object that a message names must be the process's own, and the code that makes an
// object checks its sizes. Nothing here waits: turn() looks again at requests that take time.
//
// Thread safety: the control thread's alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "attach/account.hpp"
#include "attach/packet_socket.hpp"
#include "attach/received_memory.hpp"
#include "attach/reply.hpp"
#include "attach/shared_memory.hpp"
#include "attach/wire.hpp"
#include "control/runtime_state.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

class AttachedClient {
public:
    using Clock = std::chrono::steady_clock;
    struct Ways {
        std::function<void(ReplyNode&&)> send;
        /// Runs a job, which does not throw, on this process's own thread, and has turn() called soon after.
        std::function<void(std::function<void()>)> elsewhere;
    };

    /// Calls `ways` on the control thread. Throws Error when memory is short.
    /// `net_raw`: see Peer.
    AttachedClient(RuntimeState& runtime, std::uint32_t number, std::string who, bool net_raw,
                   std::shared_ptr<Account> account, Ways ways);
    /// Ends at once all that has not ended yet. Waits for the errand that is under way.
    ~AttachedClient();
    AttachedClient(const AttachedClient&) = delete;
    AttachedClient& operator=(const AttachedClient&) = delete;

    [[nodiscard]] const std::string& who() const noexcept { return who_; }

    enum class Taken {
        yes,
        not_ours,       ///< no message of this library
        other_version,  ///< its sender has been told
    };
    /// Answers now or later. Unless this returns Taken::yes, the caller ends the process.
    [[nodiscard]] Taken take(const wire::Packet& packet, Handed handed);
    /// Things that end in one turn of all processes together: calls of other threads wait for the end of a turn.
    static constexpr int kEndsInTurn = 16;
    /// Goes on with requests that take time. Ends at most `left` things and subtracts their number from it. Returns
    /// when to call again at the latest.
    [[nodiscard]] Clock::time_point turn(int& left);
    /// Logs what the process was refused since the last call, if anything: its library would have refused that, too.
    void log_refusals();
    /// Tells the process of a device's event, unless the event concerns another process.
    void tell(const Event& event);
    [[nodiscard]] bool has_session(std::uint32_t id) const noexcept { return sessions_.contains(id); }

    /// Begins to take everything down. `abandoned`: nobody reads its rings any more. `done` learns whether all was
    /// drained within the time.
    void end(std::chrono::milliseconds drain, bool abandoned, std::function<void(bool whole)> done);
    /// The process is gone, after it had begun to end by its own wish.
    void abandon() noexcept { abandoned_ = true; }
    [[nodiscard]] bool ending() const noexcept { return ending_; }
    [[nodiscard]] bool ended() const noexcept { return ended_; }
    /// After ended(): whether all that it had in flight was flushed in time.
    [[nodiscard]] bool whole() const noexcept { return whole_; }
    /// Cancels its errands. One that has not begun fails with ESHUTDOWN.
    void cancel_errands() noexcept;
    /// Call before the runtime stops: cancels its errands and waits for the one that is under way.
    void runtime_stops() noexcept;

private:
    // How often turn() is due while requests wait for others only. A connection that arrives causes a turn at once.
    static constexpr std::chrono::seconds kSeldom{1};

    // A request that takes time. turn() calls over() until it returns true; `next` says when a turn is due for it.
    struct Later {
        std::function<bool(Clock::time_point now)> over;
        Clock::time_point next;
    };
    struct OwnRegion {
        std::shared_ptr<ReceivedMemory> memory;  // shared by regions that are parts of one memory
        std::byte* data = nullptr;
        std::uint64_t length = 0;
        PdId pd = 0;
        Account::Held place;
        Account::Held pinned;
    };
    // A request that the process's own thread carries out, under way or waiting for that.
    struct Errand {
        PdId pd = 0;  // the protection domain that it needs; 0: none
        // First: on the control thread, in each turn until it returns true; null: ready at once.
        std::function<bool()> ready;
        // Second: on the process's own thread; null: nothing to do there.
        std::function<void()> carry_out;
        // Last: on the control thread; `failure` is the exception of `ready` or `carry_out`. Owns what `carry_out`
        // made, and gives it back.
        std::function<void(std::exception_ptr failure)> conclude;
        bool begun = false;
        std::atomic<bool> cancelled{false};
        std::atomic<bool> over{false};
        std::exception_ptr failure;  // valid once `over` is true

        void run() noexcept;
    };
    struct OwnPool {
        std::uint32_t counters = 0;
        std::uint64_t region = 0;
        Account::Held place;
    };
    struct OwnObject {
        PdId pd = 0;
        Account::Held place;
    };
    struct OwnQp {
        Account::Held place;
        Account::Held requests;
        bool busy = false;                     // being closed or reset
        std::optional<Retirement> retirement;  // set while it is drained
        std::set<std::uint32_t> sessions;      // sessions that may post to it
    };
    struct OwnSrq {
        Account::Held place;
        Account::Held requests;
        std::uint32_t session = 0;
    };
    using Regions = std::map<std::uint64_t, OwnRegion>;
    using Windows = std::map<MwHandle, OwnObject>;
    using Ahs = std::map<AhHandle, OwnObject>;
    using Attempts = std::set<ConnectionKey>;
    // A region on its way out, which work requests may still name. The process cannot use it any more, and gets it back
    // if its end fails.
    struct EndingRegion {
        Regions::node_type own;
        UseSearch search;
        bool unused = false;
        std::optional<RegionEnd> end;  // set once it is unused; nothing: it has ended with the runtime
        int error = ECANCELED;         // result of RegionEnd::carry_out()
    };
    struct EndingAh {
        Ahs::node_type own;
        UseSearch search;
        bool removed = false;  // its removal from the workers has begun
    };
    // Queue pairs on their way out. Each turn goes on with some of them.
    struct Retirements {
        Clock::time_point deadline;
        std::deque<QpHandle> waiting;
        std::vector<QpHandle> under_way;
        bool whole = true;  // all of them were flushed in time
    };

    [[nodiscard]] bool answer_by_kind(const wire::Packet& packet, Handed& handed);
    template <class Body>
    [[nodiscard]] bool answer(const wire::Packet& packet, Handed& handed);
    /// A node for the answer to a Body, allocated before the request is carried out (D29).
    template <class Body>
    [[nodiscard]] static ReplyNode node_for();
    template <class Body>
    void reply(ReplyNode&& node, std::uint64_t id, const typename Body::Answered& body,
               std::vector<UniqueFd> descriptors = {}) noexcept;
    template <class Body>
    void reply(std::uint64_t id, const typename Body::Answered& body) {
        reply<Body>(node_for<Body>(), id, body);
    }
    template <class Body>
    void refuse(ReplyNode&& node, std::uint64_t id, const std::exception& why) noexcept;
    [[nodiscard]] wire::Outcome refusal(const std::exception& why) noexcept;
    template <class Body>
    void later(std::uint64_t id, std::function<std::optional<typename Body::Answered>(Clock::time_point now)> turn,
               std::chrono::milliseconds within);

    // attached_requests.cc: requests that are answered at once. Each returns its answer.
    wire::Attached carry_out(const wire::Attach& asked, std::vector<UniqueFd>& back);
    wire::SessionOpened carry_out(const wire::OpenSession& asked, Handed& handed, std::vector<UniqueFd>& back);
    wire::QpNamed carry_out(const wire::CreateQp& asked);
    wire::QpStatus carry_out(const wire::AskQpStatus& asked);
    wire::Nothing carry_out(const wire::Disconnect& asked);
    wire::Counted carry_out(const wire::AskRnrCounts& asked);
    wire::Listening carry_out(const wire::Listen& asked);
    wire::Nothing carry_out(const wire::StopListening& asked);
    wire::Nothing carry_out(const wire::Reject& asked);
    wire::PdNamed carry_out(const wire::CreatePd& asked);
    wire::Nothing carry_out(const wire::ReleasePd& asked);
    wire::WindowNamed carry_out(const wire::CreateWindow& asked);
    wire::WindowNamed carry_out(const wire::AskWindowRkey& asked);
    wire::SrqNamed carry_out(const wire::CreateSrq& asked);
    wire::Nothing carry_out(const wire::CloseSrq& asked);
    wire::Nothing carry_out(const wire::ArmLimit& asked);
    wire::SrqNamed carry_out(const wire::AskSrqLimit& asked);
    wire::PoolNamed carry_out(const wire::CreatePool& asked);
    wire::Held carry_out(const wire::AskHeldBuffers& asked);
    wire::WorkerCounted carry_out(const wire::AskWorkerCounters& asked);
    wire::ControlCounted carry_out(const wire::AskControlCounters& asked);
    wire::DeviceReported carry_out(const wire::AskDevice& asked);
    QpInfo carry_out(const wire::AskQpInfo& asked);

    // Requests that are answered later.
    [[nodiscard]] static Attempts::node_type new_attempt();
    void begin(std::uint64_t id, const wire::Detach& asked);
    void begin(std::uint64_t id, const wire::CloseSession& asked);
    void begin(std::uint64_t id, const wire::CloseQp& asked);
    void begin(std::uint64_t id, const wire::ResetQp& asked);
    void begin(std::uint64_t id, const wire::Connect& asked);
    void begin(std::uint64_t id, const wire::Accept& asked);
    void begin(std::uint64_t id, const wire::NextRequest& asked);

    // attached_errands.cc
    void begin(std::uint64_t id, const wire::RegisterMemory& asked, Handed& handed);
    void begin(std::uint64_t id, const wire::Deregister& asked);
    void begin(std::uint64_t id, const wire::ClosePool& asked);
    void begin(std::uint64_t id, const wire::Deallocate& asked);
    void begin(std::uint64_t id, const wire::DestroyAh& asked);
    void begin(std::uint64_t id, const wire::CreateAh& asked);
    void begin(std::uint64_t id, const wire::CreateAhBack& asked);
    void begin(std::uint64_t id, const wire::ConnectTo& asked);
    template <class Body>
    void create_ah(std::uint64_t id, const AhPlan& plan);
    void send_elsewhere(std::shared_ptr<Errand> errand);
    void send_elsewhere(PdId pd, std::function<void()> work, std::function<void(std::exception_ptr failure)> conclude);
    template <class Body>
    [[nodiscard]] std::shared_ptr<Errand> errand(
        std::uint64_t id, PdId pd, std::function<typename Body::Answered(std::exception_ptr failure)> conclude);
    template <class Body>
    void send_elsewhere(std::uint64_t id, PdId pd, std::function<void()> work,
                        std::function<typename Body::Answered(std::exception_ptr failure)> conclude);
    void begin_next_errand();
    [[nodiscard]] bool is_unused(EndingRegion& ending, std::uint64_t region);
    void conclude(EndingRegion& ending, const std::exception_ptr& failure);
    void conclude_errands() noexcept;
    void end_regions();

    [[nodiscard]] PdId pd_for(const std::string& device, PdId asked);
    [[nodiscard]] std::string device_name(const NameText& device) const;
    void require_session(std::uint32_t id) const;
    OwnQp& require_qp(QpHandle handle);
    void drop_session(std::uint32_t id);
    // attached_ends.cc: functions that return bool do a part of the work, and return true after the last part.
    [[nodiscard]] Retirements begin_retiring(const std::vector<QpHandle>& handles, std::chrono::milliseconds within);
    [[nodiscard]] bool retire_some(Retirements& ends) noexcept;
    [[nodiscard]] std::optional<bool> is_drained(QpHandle handle) noexcept;
    [[nodiscard]] bool stop_listening_at_some() noexcept;
    [[nodiscard]] bool close_some() noexcept;
    void close_some_sessions() noexcept;
    [[nodiscard]] std::vector<QpHandle> qps_of(std::uint32_t session) const;
    template <class F>
    void attempt(const char* what, F&& step) noexcept;

    RuntimeState& runtime_;
    const std::uint32_t number_;
    std::string who_;
    const bool net_raw_;
    const std::shared_ptr<Account> account_;
    Ways ways_;
    bool attached_ = false;
    bool ending_ = false;
    bool ended_ = false;
    bool abandoned_ = false;
    bool whole_ = true;
    int left_in_turn_ = kEndsInTurn;

    std::shared_ptr<SharedMemory> counters_;  // of the receive pools
    std::vector<bool> counters_used_;
    std::map<std::string, PdId> default_pds_;  // by device
    std::map<PdId, Account::Held> pds_;
    std::map<std::uint32_t, std::shared_ptr<ClientShare>> shares_;  // by worker
    std::map<std::uint32_t, Account::Held> sessions_;
    std::set<std::uint32_t> closing_;  // those of sessions_ that are being closed
    std::map<QpHandle, OwnQp> qps_;
    std::map<SrqHandle, OwnSrq> srqs_;
    std::map<PoolHandle, OwnPool> pools_;
    Regions regions_;
    std::deque<std::shared_ptr<Errand>> errands_;  // the first is under way, the others wait
    Windows windows_;
    Ahs ahs_;
    std::map<std::pair<std::uint32_t, std::uint64_t>, Account::Held> listeners_;  // by device and number
    // Connection requests that it has neither accepted nor rejected, by device and number.
    std::map<std::pair<std::uint32_t, std::uint64_t>, FlowBlock> requests_;
    Attempts attempts_;  // connection attempts whose outcome it waits for
    std::vector<Later> later_;
    // Refusals since the last line in the log.
    std::uint64_t requests_refused_ = 0;
    std::string last_refusal_;
    std::uint64_t slots_refused_ = 0;  // total when that line was logged
    std::uint64_t slots_refused_of_closed_ = 0;
};

}  // namespace pollcore
