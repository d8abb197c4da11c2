// Every way in which a few threads can take turns, one after the other.
//
// Threads are fibers, which give their turn back at each schedule point of the code that they run, and where they wait.
// A run is told by which thread goes on at each turn at which more than one could; the next run is the last one with
// its last such choice changed. So a run of threads that always do the same is the same, and all are seen.
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
    /// One run: what its threads share, anew, and the threads. `end` is called after they have ended.
    struct Run {
        std::vector<Thread> threads;
        std::function<void()> end;
    };

    /// Runs all of them in which no more than so many times a thread that could go on is held up for another. Returns
    /// how many there were. `stuck` is told what a run was like in which nobody can go on; then it ends, and so does
    /// the exploration.
    std::uint64_t explore(const std::function<Run()>& begin, const std::function<void(const std::string&)>& stuck,
                          std::uint32_t preemptions_max = ~std::uint32_t{0});

    // ---- from a thread ----

    /// Its turn may end here.
    void point(const char* where);
    /// Its turn ends, and it has none before another has had one, if there is one that can: for a thread that has found
    /// nothing to do.
    void yield();
    /// Its turn ends until done().
    void wait(const char* where, const std::function<bool()>& done);

    /// Whose thread is running; null elsewhere.
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
    std::vector<Choice> choices_;  ///< of this run; those of the next begin with them
    std::size_t at_ = 0;
    std::uint32_t preemptions_max_ = 0;
    std::vector<std::string> turns_;
};

}  // namespace pollcore::sim
