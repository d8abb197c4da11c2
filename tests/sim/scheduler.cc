#include "sim/scheduler.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <utility>

#include <boost/context/fiber.hpp>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace pollcore {

void schedule_point(SchedulePoint) noexcept {
    if (sim::Scheduler* scheduler = sim::Scheduler::current(); scheduler != nullptr) {
        scheduler->point();
    }
}

}  // namespace pollcore

namespace pollcore::sim {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;

// Keeps stacks for the next history: new stacks would have to be mapped, and each of their pages zeroed.
class StackPool {
public:
    StackPool() = default;
    ~StackPool() {
        for (void* stack : free_) {
            std::free(stack);
        }
    }
    [[nodiscard]] void* take() {
        if (free_.empty()) {
            return std::malloc(kStackBytes);
        }
        void* stack = free_.back();
        free_.pop_back();
        return stack;
    }
    void give(void* stack) { free_.push_back(stack); }

private:
    std::vector<void*> free_;
};

thread_local StackPool stack_pool;

struct PooledStack {
    boost::context::stack_context allocate() {
        boost::context::stack_context stack;
        stack.size = kStackBytes;
        stack.sp = static_cast<char*>(stack_pool.take()) + kStackBytes;
        return stack;
    }
    void deallocate(boost::context::stack_context& stack) noexcept {
        stack_pool.give(static_cast<char*>(stack.sp) - kStackBytes);
    }
};

// AddressSanitizer must know which stack is in use.
#if defined(__SANITIZE_ADDRESS__)
void before_switch(void** keep, const void* bottom, std::size_t size) {
    __sanitizer_start_switch_fiber(keep, bottom, size);
}
void after_switch(void* kept, const void** from, std::size_t* size) {
    __sanitizer_finish_switch_fiber(kept, from, size);
}
#else
void before_switch(void**, const void*, std::size_t) {}
void after_switch(void*, const void**, std::size_t*) {}
#endif

}  // namespace

struct Scheduler::Thread {
    const std::string* name = nullptr;
    std::function<void()> body;
    boost::context::fiber fiber;
    boost::context::fiber scheduler;  ///< the context that gave this thread its turn
    const void* stack = nullptr;
    const void* outer_stack = nullptr;
    std::size_t outer_size = 0;
    void* fake_stack = nullptr;
    std::exception_ptr failure;
    std::uint32_t weight = 1;
    std::uint64_t off_until_step = 0;             ///< taken off its core until this step
    std::uint64_t wake_ns = 0;                    ///< when its sleep ends, or when its wait times out
    const std::function<bool()>* done = nullptr;  ///< the condition that it waits for
    bool ended = false;
};

thread_local Scheduler* Scheduler::current_ = nullptr;

Scheduler::Scheduler(Random random) : random_(random) {
    constexpr std::array<std::uint32_t, 4> kPointOdds{0, 2, 8, 32};
    constexpr std::array<std::uint32_t, 4> kDelayOdds{0, 0, 64, 256};
    constexpr std::array<std::uint32_t, 3> kJumpOdds{32, 128, 1024};
    point_odds_ = random_.pick(kPointOdds);
    delay_odds_ = random_.pick(kDelayOdds);
    jump_odds_ = random_.pick(kJumpOdds);
}

Scheduler::~Scheduler() = default;

void Scheduler::start(std::string name, std::function<void()> body) {
    constexpr std::array<std::uint32_t, 5> kWeights{1, 4, 4, 4, 16};
    auto thread = std::make_unique<Thread>();
    Thread& made = *thread;
    made.name = &names_.emplace_back(std::move(name));
    made.body = std::move(body);
    made.weight = random_.pick(kWeights);
    PooledStack pool;
    boost::context::stack_context stack = pool.allocate();
    made.stack = static_cast<char*>(stack.sp) - stack.size;
    made.fiber = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                       pool, [&made](boost::context::fiber&& scheduler) {
                                           after_switch(nullptr, &made.outer_stack, &made.outer_size);
                                           made.scheduler = std::move(scheduler);
                                           try {
                                               made.body();
                                           } catch (...) {
                                               made.failure = std::current_exception();
                                           }
                                           made.ended = true;
                                           before_switch(nullptr, made.outer_stack, made.outer_size);
                                           return std::move(made.scheduler);
                                       });
    threads_.push_back(std::move(thread));
}

const std::string& Scheduler::running() const noexcept {
    static const std::string nobody = "the scheduler";
    return running_ != nullptr ? *running_->name : nobody;
}

bool Scheduler::ready(Thread& thread) {
    if (thread.off_until_step > steps_) {
        return false;
    }
    if (thread.wake_ns == 0 || thread.wake_ns <= now_ns_) {
        return true;
    }
    return thread.done != nullptr && (*thread.done)();
}

Scheduler::Thread* Scheduler::choose() {
    std::uint32_t all = 0;
    for (const auto& thread : threads_) {
        all += thread->weight;
    }
    // Chooses a thread by weight. If that thread cannot go on, chooses the next thread that can.
    std::uint32_t at = random_.below(all);
    std::size_t first = 0;
    while (at >= threads_[first]->weight) {
        at -= threads_[first]->weight;
        ++first;
    }
    for (std::size_t i = 0; i < threads_.size(); ++i) {
        Thread& thread = *threads_[(first + i) % threads_.size()];
        if (ready(thread)) {
            return &thread;
        }
    }
    return nullptr;
}

// A turn takes a few hundred nanoseconds. If nothing happens for many turns, all threads wait for a timer. Time then
// passes faster, which leaves more steps for later work.
void Scheduler::pass_time() {
    std::uint64_t passed = random_.between(20, 400);
    if (random_.one_in(jump_odds_)) {
        passed = std::uint64_t{1} << random_.between(10, 19);
    }
    constexpr std::uint32_t kQuietFirst = 24;
    if (++quiet_turns_ > kQuietFirst) {
        passed += std::uint64_t{256} << std::min(quiet_turns_ - kQuietFirst, 15u);
    }
    now_ns_ += passed;
}

bool Scheduler::step() {
    if (threads_.empty()) {
        return false;
    }
    ++steps_;
    pass_time();
    Thread* thread = choose();
    if (thread == nullptr) {
        return true;  // all threads sleep or are delayed; only time has passed
    }
    if (delay_odds_ != 0 && random_.one_in(delay_odds_)) {
        thread->off_until_step = steps_ + random_.between(2, 60);
    }
    thread->wake_ns = 0;
    thread->done = nullptr;
    running_ = thread;
    current_ = this;
    before_switch(&thread->fake_stack, thread->stack, kStackBytes);
    thread->fiber = std::move(thread->fiber).resume();
    after_switch(thread->fake_stack, nullptr, nullptr);
    current_ = nullptr;
    if (thread->ended) {
        const std::exception_ptr failure = thread->failure;
        std::erase_if(threads_, [&](const auto& other) { return other.get() == thread; });
        running_ = nullptr;
        if (failure) {
            std::rethrow_exception(failure);
        }
    }
    return true;
}

void Scheduler::leave() {
    Thread& self = *running_;
    void* fake_stack = nullptr;
    before_switch(&fake_stack, self.outer_stack, self.outer_size);
    self.scheduler = std::move(self.scheduler).resume();
    after_switch(fake_stack, &self.outer_stack, &self.outer_size);
}

void Scheduler::yield() {
    leave();
}

void Scheduler::sleep(std::uint64_t ns) {
    running_->wake_ns = now_ns_ + ns;
    leave();
}

bool Scheduler::wait(std::uint64_t timeout_ns, const std::function<bool()>& done) {
    const std::uint64_t until = timeout_ns > kForever - now_ns_ ? kForever : now_ns_ + timeout_ns;
    while (!done() && now_ns_ < until) {
        running_->wake_ns = until;
        running_->done = &done;
        leave();
    }
    return done();
}

void Scheduler::point() {
    if (point_odds_ != 0 && random_.one_in(point_odds_)) {
        leave();
    }
}

void Scheduler::settle() noexcept {
    point_odds_ = 0;
    delay_odds_ = 0;
    for (const auto& thread : threads_) {
        thread->weight = 1;
        thread->off_until_step = 0;
    }
}

}  // namespace pollcore::sim
