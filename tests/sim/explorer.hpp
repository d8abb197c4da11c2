// Explores every order in which a few threads can take turns, run by run.
//
// Threads are fibers. They give their turn back at each schedule point of the code that they run, and where they wait.
// A run is defined by its choices: which thread goes on at each turn at which more than one could. The next run repeats
// the last one with its last open choice changed. If the threads are deterministic, all runs are seen.
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
    /// The threads of one run, with a new shared state. `end` is called after all of them have ended.
    struct Run {
        std::vector<Thread> threads;
        std::function<void()> end;
    };

    /// Makes all runs with at most `preemptions_max` preemptions, where a thread that could go on is held up for
    /// another. Returns the number of runs. If nobody can go on in a run, `stuck` gets its description, and the
    /// exploration ends.
    std::uint64_t explore(const std::function<Run()>& begin, const std::function<void(const std::string&)>& stuck,
                          std::uint32_t preemptions_max = ~std::uint32_t{0});

    // ---- from a thread ----

    /// The turn of the calling thread may end here.
    void point(const char* where);
    /// Ends the turn of a thread that has found nothing to do: another thread that can go on has a turn first.
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
