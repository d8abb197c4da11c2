// Threads that take turns, and their clock. A seed decides which thread runs next, for how long, and which thread is
// delayed. One thread runs at a time, from one place where it may be interrupted to the next such place.
//
// A thread is a fiber. It gives its turn back by yield(), by waiting, or at a schedule point of the code that it runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pollcore/schedule_point.hpp"
#include "sim/random.hpp"

namespace pollcore::sim {

class Scheduler {
public:
    explicit Scheduler(Random random);
    ~Scheduler();  ///< call only after all threads have ended
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    /// Makes a thread. It begins to run at its first turn.
    void start(std::string name, std::function<void()> body);

    /// Gives one turn to one thread, unless all threads sleep. Returns false if no thread is left. Rethrows an
    /// exception that a thread throws.
    bool step();
    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }
    /// Name of the thread whose turn it is. The reference is valid as long as the scheduler lives.
    [[nodiscard]] const std::string& running() const noexcept;

    // ---- called by the threads ----

    void yield();
    void sleep(std::uint64_t ns);
    /// Waits until done() is true or the timeout is over, and returns done(). The scheduler also calls done(), between
    /// the turns.
    bool wait(std::uint64_t timeout_ns, const std::function<bool()>& done);
    void wait(const std::function<bool()>& done) { (void)wait(kForever, done); }
    /// The turn may end here, at random.
    void point();
    /// Reports that a thread has done some work: time then passes slowly.
    void progress() noexcept { quiet_turns_ = 0; }

    /// From now on all threads are equally likely to get a turn, and none is delayed. All work that can end then ends.
    void settle() noexcept;

    /// The scheduler whose thread is running; null elsewhere.
    [[nodiscard]] static Scheduler* current() noexcept { return current_; }

    static constexpr std::uint64_t kForever = ~std::uint64_t{0};

private:
    struct Thread;

    [[nodiscard]] Thread* choose();
    [[nodiscard]] bool ready(Thread& thread);
    void pass_time();
    void leave();

    static thread_local Scheduler* current_;

    Random random_;
    std::deque<std::string> names_;
    std::vector<std::unique_ptr<Thread>> threads_;
    Thread* running_ = nullptr;
    std::uint64_t steps_ = 0;
    std::uint64_t now_ns_ = 1'000'000;
    std::uint32_t quiet_turns_ = 0;  ///< consecutive turns without work
    std::uint32_t point_odds_ = 0;   ///< one schedule point in this many ends the turn; 0: none does
    std::uint32_t delay_odds_ = 0;   ///< one turn in this many delays the thread for some steps; 0: none does
    std::uint32_t jump_odds_ = 0;    ///< one turn in this many lets the clock jump
};

}  // namespace pollcore::sim
