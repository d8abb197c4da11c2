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

/// How an application behaves.
struct Shape {
    const char* name = "";
    std::uint32_t window = 8;      ///< sends in flight on a queue pair, as far as it keeps to that
    std::uint32_t batch = 4;       ///< sends in a row
    std::uint32_t polls = 4;       ///< of so many turns one is not for polling, but for sending
    std::uint32_t idles = 0;       ///< does nothing, once in so many turns; 0: never
    std::uint32_t receives = 100;  ///< per cent of the receive queue that it keeps posted
};

class Application {
public:
    Application(World& world, std::string name, Random random, Session session, std::uint32_t completion_slots,
                bool wide, bool device_time, const Shape& shape);

    /// Posts to it, as this one of the sessions that do. The first has the receives.
    void use(Channel& channel, std::size_t lane);
    /// Keeps it filled. One at most.
    void use(SharedReceives& shared);
    /// Its thread.
    void run();

    /// Takes no completions until this step.
    void stop_polling(std::uint64_t until_step) { no_poll_until_ = until_step; }
    /// Closes its session, in its own thread, and takes what is left.
    void close_session() { close_wanted_ = true; }

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] Session& session() noexcept { return session_; }
    [[nodiscard]] bool closing() const noexcept { return close_wanted_; }
    [[nodiscard]] bool ended() const noexcept { return ended_; }
    [[nodiscard]] bool uses(const Channel& channel) const noexcept;
    [[nodiscard]] SharedReceives* shared() const noexcept { return shared_; }
    /// Nothing of its sends is in flight, but what is unsignaled, or of ends that have one of these excuses, or a peer
    /// that the provider may have kept or that may lack receives.
    [[nodiscard]] bool sends_rest(std::uint32_t but_with) const noexcept;
    /// The session's figures against what was seen here.
    void check_figures();
    /// Nobody has written to a buffer whose request had failed.
    void check_given_back() const;

private:
    /// A queue pair that it posts to.
    struct Use {
        Channel* channel = nullptr;
        std::size_t lane = 0;
        bool receives = false;        ///< they are its own
        std::vector<bool> send_busy;  ///< by slot
        std::vector<bool> recv_busy;
        const End* life = nullptr;     ///< that these are of
        QpHandle handle{};             ///< of that life
        QpHandle old_handle{};         ///< of the one before
        std::uint32_t sends = 0;       ///< in flight
        std::uint32_t unsignaled = 0;  ///< of those, in a row since the last signaled one
        std::uint32_t retired = 0;     ///< seen here, of Session::retired
        Refusal refusal{};             ///< the last one, until something is taken
    };

    void turn();
    void rest(std::uint64_t most_ns);
    void send_some(Use& use);
    [[nodiscard]] bool send_one(Use& use);
    [[nodiscard]] bool change_window(Use& use, std::uint32_t slot);
    void window_changed(Channel& channel, const End& end, const Request& request, const Completion& completion);
    [[nodiscard]] bool send_datagram(Use& use, std::uint32_t slot);
    /// The runtime gets it, in one of the ways that there are.
    [[nodiscard]] bool submit(Use& use, const Request& request, const WorkRequest& work);
    /// The next one of a send queue, from this place.
    [[nodiscard]] Request begun(const Channel& channel, std::uint32_t slot) const;
    [[nodiscard]] std::uint64_t tag_of(const Channel& channel) const noexcept;
    void keep_receives(Use& use);
    void keep_shared_receives();
    void take_shared(const Completion& completion);
    /// How many receives it keeps posted in a receive queue of that depth.
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
    /// Nobody is to write to its buffer any more.
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
    std::map<std::pair<QpHandle, bool>, std::uint64_t> newest_times_;  ///< by queue pair and queue
    std::set<QpHandle> lack_time_;  ///< queue pairs of which a request succeeded without one
    bool news_ = false;             ///< it may have been told that something was completed or retired
    bool in_call_ = false;          ///< in the middle of a call, where figures need not agree
    bool close_wanted_ = false;
    bool closed_ = false;
    bool ended_ = false;
};

}  // namespace pollcore::sim
