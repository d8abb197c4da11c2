// Threads that are turned by hand, and their clock. A seed decides which thread runs next, for how long, and when it
// sleeps. One thread runs at a time, from one place where it may be interrupted to the next.
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
    ~Scheduler();  ///< only after all threads have ended
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    /// A thread that begins at its first turn.
    void start(std::string name, std::function<void()> body);

    /// Gives one turn to one thread. False when no thread is left. Rethrows what a thread throws.
    bool step();
    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }
    /// Name of the thread whose turn it is. The reference is valid as long as the scheduler lives.
    [[nodiscard]] const std::string& running() const noexcept;

    // ---- from a thread ----

    void yield();
    void sleep(std::uint64_t ns);
    /// Waits until done() is true or the time is over, and returns done(). done() is called in other threads' turns.
    bool wait(std::uint64_t timeout_ns, const std::function<bool()>& done);
    /// Waits as long as it takes.
    void wait(const std::function<bool()>& done) { (void)wait(kForever, done); }
    /// The turn may end here, at random.
    void point();
    /// Reports that something was done: time then passes slowly.
    void progress() noexcept { quiet_turns_ = 0; }

    /// From now on all threads take turns alike and none is delayed, so that all work that can end does end.
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
    std::uint32_t quiet_turns_ = 0;  ///< consecutive turns in which nothing was done
    std::uint32_t point_odds_ = 0;   ///< a schedule point ends the turn once in so many; 0: never
    std::uint32_t delay_odds_ = 0;   ///< a thread is taken off its core once in so many turns; 0: never
    std::uint32_t jump_odds_ = 0;    ///< time jumps once in so many turns
};

}  // namespace pollcore::sim
