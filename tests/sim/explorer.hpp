// Explores every order in which a few threads can take turns, run by run.
//
// Threads are fibers. A thread gives its turn back when it waits, and at each schedule point of the code that it runs,
// except SchedulePoint::take and release. If several threads can have the next turn, the explorer chooses one. A run is
// defined by these choices. The next run repeats the previous run, but changes the last choice that has an untried
// thread. If the threads are deterministic, every possible run is made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/context/fiber.hpp>

#include "pollcore/schedule_point.hpp"

namespace pollcore::sim {

class Explorer {
public:
    struct Thread {
        std::string name;
        std::function<void()> body;
    };
    /// The threads of one run, with a new shared state. `end` is called after all threads have ended.
    struct Run {
        std::vector<Thread> threads;
        std::function<void()> end;
    };

    /// Makes all runs with at most `preemptions_max` preemptions, and returns the number of runs. A preemption holds up
    /// a thread that could go on, and gives the turn to another thread. If no thread can go on, calls `stuck` with a
    /// description of the run, and ends the exploration.
    std::uint64_t explore(const std::function<Run()>& begin, const std::function<void(const std::string&)>& stuck,
                          std::uint32_t preemptions_max = ~std::uint32_t{0});

    // ---- called by the threads of a run ----

    /// The turn of the calling thread may end here.
    void point(const char* where);
    /// Ends the turn of a thread that has found nothing to do. The thread goes on after another thread has had a turn,
    /// or when no other thread can go on.
    void yield();
    /// Ends the turn; the thread goes on only when done() is true.
    void wait(const char* where, const std::function<bool()>& done);

    /// The explorer whose thread is running; null elsewhere.
    [[nodiscard]] static Explorer* current() noexcept { return current_; }

private:
    struct Fiber {
        const Thread* thread = nullptr;
        boost::context::fiber fiber;
        boost::context::fiber explorer;
        const char* where = "";
        const std::function<bool()>* done = nullptr;
        bool yields = false;
        bool ended = false;
    };
    struct Choice {
        std::uint32_t taken = 0;
        std::uint32_t of = 0;
    };

    void abandon();
    bool run_once(const Run& run, const std::function<void(const std::string&)>& stuck);
    [[nodiscard]] std::vector<Fiber*> able();
    [[nodiscard]] std::string story() const;
    void leave();

    static Explorer* current_;

    std::vector<std::unique_ptr<Fiber>> fibers_;
    Fiber* running_ = nullptr;
    std::vector<Choice> choices_;  ///< choices of this run, and the prefix of the next run
    std::size_t at_ = 0;
    std::uint32_t preemptions_max_ = 0;
    std::vector<std::string> turns_;
};

}  // namespace pollcore::sim
