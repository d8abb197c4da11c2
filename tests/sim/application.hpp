// An application: a thread with a session, and its traffic on some queue pairs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pollcore/runtime.hpp"
#include "sim/model.hpp"
#include "sim/random.hpp"

namespace pollcore::sim {

class World;
struct Channel;
struct SharedReceives;

struct Shape {
    const char* name = "";
    std::uint32_t window = 8;      ///< most sends in flight on a queue pair
    std::uint32_t batch = 4;       ///< most sends in one turn
    std::uint32_t polls = 4;       ///< one turn in this many sends, the other turns poll
    std::uint32_t idles = 0;       ///< one turn in this many only sleeps; 0: no turn does
    std::uint32_t receives = 100;  ///< percentage of the receive queue that the application keeps posted
};

class Application {
public:
    Application(World& world, std::string name, Random random, Session session, std::uint32_t completion_slots,
                bool wide, bool device_time, const Shape& shape);

    /// Posts to this queue pair, as session number `lane` of the sessions that share the queue pair. Session 0 posts
    /// the receives.
    void use(Channel& channel, std::size_t lane);
    /// Keeps this shared receive queue filled. Call at most once for each application.
    void use(SharedReceives& shared);
    /// The body of its thread.
    void run();

    /// Takes no completions until this step.
    void stop_polling(std::uint64_t until_step) { no_poll_until_ = until_step; }
    /// The application's own thread closes its session and takes the remaining completions.
    void close_session() { close_wanted_ = true; }

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] Session& session() noexcept { return session_; }
    [[nodiscard]] bool closing() const noexcept { return close_wanted_; }
    [[nodiscard]] bool ended() const noexcept { return ended_; }
    [[nodiscard]] bool uses(const Channel& channel) const noexcept;
    [[nodiscard]] SharedReceives* shared() const noexcept { return shared_; }
    /// Returns false while a send in flight must still complete. Ignores unsignaled sends, unless they fill the send
    /// queue. Ignores all sends of an end that has one of the excuses `but_with`. Also ignores them if the end's peer
    /// may lack receives, or if the provider may keep the peer (kKept).
    [[nodiscard]] bool sends_rest(std::uint32_t but_with) const noexcept;
    /// Compares the session's figures with the application's own counts. Throws Violation if they differ.
    void check_figures();
    /// Throws if somebody has written to a buffer after its request had failed.
    void check_given_back() const;

private:
    /// A queue pair that the application posts to.
    struct Use {
        Channel* channel = nullptr;
        std::size_t lane = 0;
        bool receives = false;        ///< this application posts the receives of the queue pair
        std::vector<bool> send_busy;  ///< by slot
        std::vector<bool> recv_busy;
        const End* life = nullptr;     ///< the life of the queue pair that this record describes
        QpHandle handle{};             ///< handle of `life`
        QpHandle old_handle{};         ///< handle of the previous life
        std::uint32_t sends = 0;       ///< sends in flight
        std::uint32_t unsignaled = 0;  ///< unsignaled sends since the last signaled one
        std::uint32_t retired = 0;     ///< requests that retired in this life; compare Session::retired
        Refusal refusal{};             ///< the last refusal; Refusal::none after an accepted request
    };

    void turn();
    void rest(std::uint64_t most_ns);
    void send_some(Use& use);
    [[nodiscard]] bool send_one(Use& use);
    [[nodiscard]] bool change_window(Use& use, std::uint32_t slot);
    void window_changed(Channel& channel, const End& end, const Request& request, const Completion& completion);
    [[nodiscard]] bool send_datagram(Use& use, std::uint32_t slot);
    /// Submits the request, in one of the ways that the session offers.
    [[nodiscard]] bool submit(Use& use, const Request& request, const WorkRequest& work);
    /// Begins a request of a send queue. The request uses the memory of this slot.
    [[nodiscard]] Request begun(const Channel& channel, std::uint32_t slot) const;
    [[nodiscard]] std::uint64_t tag_of(const Channel& channel) const noexcept;
    void keep_receives(Use& use);
    void keep_shared_receives();
    void take_shared(const Completion& completion);
    /// Number of receives that the application keeps posted in a receive queue of this depth.
    [[nodiscard]] std::uint32_t receives_wanted(std::uint32_t depth, std::uint32_t per_cent) const noexcept;
    [[nodiscard]] bool keeps_all_receives();
    void poll_all_and_retire();
    bool poll();
    void try_old_handle(Use& use);
    template <class Record>
    [[nodiscard]] std::size_t poll_as(std::size_t most);
    void take(const Completion& completion, const CompletionExtension& more);
    void check_time(const WideCompletion& completion);
    void on_refusal(const SharedReceives& shared, Refusal refusal);
    void on_refusal(Use& use, const End& end, const Request& request, Refusal refusal);
    /// Marks the buffer of a failed request: nobody may write there from now on.
    void watch(const Request& failed);
    void give_back(Use& use, End& end, const Request& request);
    void begin_life(Use& use);
    void finish();

    World& world_;
    std::string name_;
    Random random_;
    Session session_;
    Shape shape_;
    std::vector<Use> uses_;
    SharedReceives* shared_ = nullptr;
    std::vector<bool> shared_busy_;  ///< by slot
    std::uint64_t no_poll_until_ = 0;
    std::uint64_t next_sequence_ = 1;
    std::uint64_t submitted_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t retired_ = 0;
    std::vector<std::span<std::byte>> given_back_;
    std::uint32_t completion_slots_;
    bool wide_;
    bool device_time_;
    /// by queue pair and queue; true means the receive queue
    std::map<std::pair<QpHandle, bool>, std::uint64_t> newest_times_;
    std::set<QpHandle> lack_time_;  ///< queue pairs where a request succeeded without a device time
    bool news_ = false;             ///< the session may have signaled a completed or retired request
    bool in_call_ = false;  ///< a call into the session is in progress: its figures may differ from the counts here
    bool close_wanted_ = false;
    bool closed_ = false;
    bool ended_ = false;
};

}  // namespace pollcore::sim
