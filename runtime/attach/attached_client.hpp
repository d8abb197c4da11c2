// One attached process, as the daemon's control thread sees it: the objects, the limits and the unfinished requests of
// the process.
//
// The process's messages are hostile. Each object that a message names must belong to the process, and the code that
// makes an object checks its sizes. Only the destructor and runtime_stops() wait for errands. All other functions wait
// at most for a worker's answer to a command, and turn() continues requests that take time.
//
// Thread safety: only the control thread uses an AttachedClient.
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
#include "attach/credentials.hpp"
#include "attach/packet_socket.hpp"
#include "attach/received_memory.hpp"
#include "attach/reply.hpp"
#include "attach/shared_memory.hpp"
#include "attach/wire.hpp"
#include "control/runtime_state.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

class AttachedClient {
public:
    using Clock = std::chrono::steady_clock;
    struct Ways {
        std::function<void(ReplyNode&&)> send;
        /// Runs a job on the thread that the daemon has for this process. turn() is called soon after the job. The job
        /// must not throw.
        std::function<void(std::function<void()>)> elsewhere;
    };

    /// The functions of `ways` are called on the control thread. Throws Error if memory is
    /// short.
    AttachedClient(RuntimeState& runtime, std::uint32_t number, std::string who, Rights rights,
                   std::shared_ptr<Account> account, Ways ways);
    /// Ends all remaining objects at once. Waits for the Errand that is under way.
    ~AttachedClient();
    AttachedClient(const AttachedClient&) = delete;
    AttachedClient& operator=(const AttachedClient&) = delete;

    [[nodiscard]] const std::string& who() const noexcept { return who_; }
    [[nodiscard]] std::uint32_t uid() const noexcept { return account_->uid(); }
    /// The text in it is valid as long as this object.
    [[nodiscard]] ProcessFigures figures() const noexcept;
    [[nodiscard]] AttachedProcess description() const;
    [[nodiscard]] bool has_listener(std::uint32_t device, std::uint64_t listener) const noexcept {
        return listeners_.contains({device, listener});
    }
    /// The process has used a command descriptor against the daemon's objects.
    [[nodiscard]] bool abused() const noexcept { return abused_; }

    enum class Taken {
        yes,
        not_ours,       ///< the packet is no message of this library
        other_version,  ///< the packet has another version of the protocol; the process was told so
    };
    /// Takes a packet of the process, and answers it now or later. If the result is not Taken::yes, the caller evicts
    /// the process.
    [[nodiscard]] Taken take(const wire::Packet& packet, Handed handed);
    /// The largest number of objects that end in one turn, of all processes together. A session that its process closes
    /// does not count. The number is small because calls of other threads wait for the end of the turn.
    static constexpr int kEndsInTurn = 16;
    /// Continues requests that take time. Ends at most `left` objects, and subtracts their number from `left`. Returns
    /// the time by which the next call is due.
    [[nodiscard]] Clock::time_point turn(int& left);
    /// Logs how many requests of the process were refused since the last call. Also logs how many submissions the
    /// workers refused: the process's own sessions should have refused them. Logs nothing if there are none.
    void log_refusals() noexcept;
    /// Sends an event to the process, if it is attached and not ending. Leaves out events of a worker, and events of
    /// another process's objects.
    /// `client` as in ClientHost::event.
    void tell(const Event& event, std::uint32_t client);
    /// Keeps an event of one of the process's queue pairs or listeners, until the process asks for it. If the event
    /// says that a queue pair is gone or has a new handle, notes that.
    void tell_of_connection(Event&& event) noexcept;
    [[nodiscard]] bool has_session(std::uint32_t id) const noexcept { return sessions_.contains(id); }

    /// Begins to end all objects of the process. The turns that follow do the work. Queue pairs have `drain` to be
    /// flushed. If `abandoned` is true, the workers do not wait for requests that are still in the process's rings.
    void end(std::chrono::milliseconds drain, bool abandoned) noexcept;
    /// Call this when the process is gone, so that no thread reads its rings any more. The process may already have
    /// begun to detach.
    void abandon() noexcept { abandoned_ = true; }
    [[nodiscard]] bool ending() const noexcept { return ending_; }
    [[nodiscard]] bool ended() const noexcept { return ended_; }
    /// Whether all work requests in flight were flushed in time. Valid only if ended() is true.
    [[nodiscard]] bool whole() const noexcept { return whole_; }
    /// Cancels all errands of the process. An errand that has not begun fails with ESHUTDOWN.
    void cancel_errands() noexcept;
    /// Call this before the runtime stops. Cancels all errands, and waits for the errand that is under way.
    void runtime_stops() noexcept;

private:
    // turn() is due this often while requests only wait for a peer or another process. If a connection changes, a turn
    // is due at once.
    static constexpr std::chrono::seconds kSeldom{1};

    // A request that takes time. turn() calls over() until over() returns true. The next turn for this request is due
    // at `next`.
    struct Later {
        std::function<bool(Clock::time_point now)> over;
        Clock::time_point next;
    };
    struct OwnRegion {
        std::shared_ptr<ReceivedMemory> memory;  // shared by all regions in the same memory
        PdId pd = 0;
        Account::Held place;
        Account::Held pinned;
    };
    // An errand: a request that the daemon's thread for this process carries out. The first errand of a process is
    // under way, and the others wait. An errand has three steps.
    struct Errand {
        PdId pd = 0;  // the protection domain that the errand needs; 0: none
        // The first step, on the control thread. Each turn calls `ready` until it returns true. A null `ready` counts
        // as true.
        std::function<bool()> ready;
        // The second step, on the daemon's thread for this process. Null if there is nothing to do on that thread.
        std::function<void()> carry_out;
        // The last step, on the control thread. `failure` is the exception of `ready` or `carry_out`. `conclude` keeps
        // or ends the objects that `carry_out` has made.
        std::function<void(std::exception_ptr failure)> conclude;
        bool begun = false;
        std::atomic<bool> cancelled{false};
        std::atomic<bool> over{false};
        std::exception_ptr failure;  // valid after `over` has become true

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
        bool busy = false;                     // the queue pair is being closed or reset, or will be in a later turn
        std::optional<Retirement> retirement;  // set while the queue pair is drained
        std::set<std::uint32_t> sessions;      // the sessions that may post to the queue pair
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
    // A memory region that is being ended. Work requests may still name the region, but the process cannot use it for
    // new requests to the daemon. If ending the region fails, the process gets it back.
    struct EndingRegion {
        Regions::node_type own;
        UseSearch search;
        bool unused = false;           // no work request names the region
        std::optional<RegionEnd> end;  // set once `unused` is true; empty if the region ended with the runtime
        int error = ECANCELED;         // the result of RegionEnd::carry_out()
    };
    struct EndingAh {
        Ahs::node_type own;
        UseSearch search;
        bool removed = false;  // the workers have begun to remove the address handle
    };
    // Queue pairs that are being retired. Each turn continues with some of them.
    struct Retirements {
        Clock::time_point deadline;
        std::deque<QpHandle> waiting;
        std::vector<QpHandle> under_way;  // its capacity suffices, so adding does not allocate
        bool whole = true;                // all queue pairs so far were flushed in time
    };
    // A request to detach, which is answered after the last object has ended.
    struct Detaching {
        std::uint64_t id;
        ReplyNode node;
    };

    [[nodiscard]] bool answer_by_kind(const wire::Packet& packet, Handed& handed);
    template <class Body>
    [[nodiscard]] bool answer(const wire::Packet& packet, Handed& handed);
    /// Allocates the node for the answer to a request of type Body, before the request is carried out (D29).
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

    // In attached_requests.cc: requests that are answered at once. Each function returns the answer.
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
    wire::Nothing carry_out(const wire::CopyStatistics& asked, std::vector<UniqueFd>& back);
    wire::DeviceReported carry_out(const wire::AskDevice& asked);
    QpInfo carry_out(const wire::AskQpInfo& asked);
    wire::QpQueried carry_out(const wire::AskQp& asked);
    DeviceAttributes carry_out(const wire::AskDeviceAttributes& asked);
    wire::PortQueried carry_out(const wire::AskPort& asked);
    wire::Gids carry_out(const wire::AskGids& asked);
    wire::Pkey carry_out(const wire::AskPkey& asked);
    wire::Nothing carry_out(const wire::BeginConnect& asked);
    wire::Nothing carry_out(const wire::BeginAccept& asked);
    wire::Nothing carry_out(const wire::BeginEnding& asked);
    wire::Cancelled carry_out(const wire::Cancel& asked);

    // Requests that are answered later.
    [[nodiscard]] static Attempts::node_type new_attempt();
    void begin(std::uint64_t id, const wire::Detach& asked);
    void begin(std::uint64_t id, const wire::CloseSession& asked);
    void begin(std::uint64_t id, const wire::CloseQp& asked);
    void begin(std::uint64_t id, const wire::ResetQp& asked);
    void begin(std::uint64_t id, const wire::Connect& asked);
    void begin(std::uint64_t id, const wire::Accept& asked);
    void begin(std::uint64_t id, const wire::NextRequest& asked);
    void begin(std::uint64_t id, const wire::NextEvents& asked);
    [[nodiscard]] wire::ConnectionEvents next_events();
    [[nodiscard]] const FlowBlock& require_request(std::uint32_t device, std::uint64_t request) const;

    // In attached_errands.cc: requests that are answered after an errand.
    void begin(std::uint64_t id, const wire::RegisterMemory& asked, Handed& handed);
    void begin(std::uint64_t id, const wire::Deregister& asked);
    void begin(std::uint64_t id, const wire::ClosePool& asked);
    void begin(std::uint64_t id, const wire::Deallocate& asked);
    void begin(std::uint64_t id, const wire::DestroyAh& asked);
    void begin(std::uint64_t id, const wire::CreateAh& asked);
    void begin(std::uint64_t id, const wire::CreateAhTo& asked);
    void begin(std::uint64_t id, const wire::CreateAhBack& asked);
    void begin(std::uint64_t id, const wire::ConnectTo& asked);
    void begin(std::uint64_t id, const wire::ModifyQp& asked);
    void begin(std::uint64_t id, const wire::ShareContext& asked);
    void begin(std::uint64_t id, const wire::FindKey& asked);
    template <class Body>
    void create_ah(std::uint64_t id, const AhPlan& plan);
    void require_may_share(const std::string& device) const;
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
    void look_for_abuse() noexcept;
    void require_trusted(const SharedContext& context) const;

    [[nodiscard]] PdId pd_for(const std::string& device, PdId asked);
    [[nodiscard]] std::string device_name(const NameText& device) const;
    void require_session(std::uint32_t id) const;
    OwnQp& require_qp(QpHandle handle);
    void require_may_have(std::uint32_t qkey) const;
    void drop_session(std::uint32_t id);
    // In attached_ends.cc. A function that returns bool does a part of its work, and returns true after the last part.
    void end_some() noexcept;
    [[nodiscard]] Retirements begin_retiring(const std::vector<QpHandle>& handles, Clock::time_point deadline);
    [[nodiscard]] bool retire_some(Retirements& ends) noexcept;
    [[nodiscard]] std::optional<bool> retire(QpHandle handle, Clock::time_point deadline);
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
    const Rights rights_;
    const std::shared_ptr<Account> account_;
    Ways ways_;
    bool attached_ = false;
    bool ending_ = false;
    bool ended_ = false;
    bool abandoned_ = false;
    bool abused_ = false;
    bool whole_ = true;
    bool closed_ = false;                   // the objects of the process have ended
    Clock::time_point drained_by_{};        // valid after `ending_` has become true
    std::optional<Retirements> last_ends_;  // the queue pairs that end with the process
    std::optional<Detaching> detaching_;
    int left_in_turn_ = kEndsInTurn;

    std::shared_ptr<SharedMemory> counters_;  // the counters of the receive pools
    std::vector<bool> counters_used_;
    std::map<std::string, PdId> default_pds_;  // by device
    std::map<std::string, std::string>
        own_devices_;  // names of devices that were opened for this process, by the device
    std::map<PdId, Account::Held> pds_;
    std::map<std::uint32_t, std::shared_ptr<ClientShare>> shares_;  // by worker
    std::map<std::uint32_t, Account::Held> sessions_;
    std::set<std::uint32_t> closing_;  // sessions that are being closed
    std::map<QpHandle, OwnQp> qps_;
    std::map<SrqHandle, OwnSrq> srqs_;
    std::map<PoolHandle, OwnPool> pools_;
    Regions regions_;
    std::deque<std::shared_ptr<Errand>> errands_;  // the first errand is under way, the others wait
    Windows windows_;
    Ahs ahs_;
    std::map<std::pair<std::uint32_t, std::uint64_t>, Account::Held> listeners_;  // by device and number
    // Connection requests that the process has neither accepted nor rejected, by device and number.
    std::map<std::pair<std::uint32_t, std::uint64_t>, FlowBlock> requests_;
    /// Calls the queue pair by its present handle, also if the process has not yet taken the event of its reset.
    [[nodiscard]] QpHandle present(QpHandle handle) noexcept;
    void answered(std::uint32_t device, std::uint64_t request) noexcept;

    ConnectionEvents events_;
    // Queue pairs that were closed, until the process has taken the event. They count in its account, so that a process
    // that takes no events cannot have ever more of them.
    std::map<QpHandle, OwnQp> closed_qps_;
    std::optional<Event> first_event_;  // taken from events_, and goes before the others
    bool events_asked_ = false;         // the process waits for events
    Attempts attempts_;                 // connection attempts whose outcome the process waits for
    std::vector<Later> later_;
    // Refused requests since the last log line about refusals.
    std::uint64_t requests_refused_ = 0;
    std::uint64_t refused_ever_ = 0;
    std::string last_refusal_;         // printable
    std::uint64_t slots_refused_ = 0;  // refused submissions up to the last call of log_refusals()
    std::uint64_t slots_refused_of_closed_ = 0;
};

}  // namespace pollcore
