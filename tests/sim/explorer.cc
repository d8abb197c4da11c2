#include "sim/explorer.hpp"

#include <algorithm>
#include <stdexcept>

namespace pollcore {

void schedule_point(SchedulePoint point) noexcept {
    static constexpr const char* kNames[] = {"publishes", "takes",       "releases", "says that it sleeps",
                                             "arms",      "looks again", "wakes"};
    // These two points do not influence which thread sleeps, and would only multiply the runs.
    if (point == SchedulePoint::take || point == SchedulePoint::release) {
        return;
    }
    if (sim::Explorer* explorer = sim::Explorer::current(); explorer != nullptr) {
        explorer->point(kNames[static_cast<std::size_t>(point)]);
    }
}

}  // namespace pollcore

namespace pollcore::sim {
namespace {

constexpr std::size_t kTurnsMax = 1000;

}  // namespace

Explorer* Explorer::current_ = nullptr;

std::uint64_t Explorer::explore(const std::function<Run()>& begin, const std::function<void(const std::string&)>& stuck,
                                std::uint32_t preemptions_max) {
    preemptions_max_ = preemptions_max;
    choices_.clear();
    for (std::uint64_t runs = 1;; ++runs) {
        const Run run = begin();
        if (!run_once(run, stuck)) {
            return runs;
        }
        run.end();
        while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().of) {
            choices_.pop_back();
        }
        if (choices_.empty()) {
            return runs;
        }
        ++choices_.back().taken;
    }
}

// Stuck threads are never destroyed: ending a fiber would throw an exception through the code that it runs.
void Explorer::abandon() {
    static auto* const abandoned = new std::vector<std::unique_ptr<Fiber>>();
    for (auto& fiber : fibers_) {
        abandoned->push_back(std::move(fiber));
    }
    fibers_.clear();
}

// Returns false if no thread can go on, or if the run does not end.
bool Explorer::run_once(const Run& run, const std::function<void(const std::string&)>& stuck) {
    at_ = 0;
    turns_.clear();
    fibers_.clear();
    for (const Thread& thread : run.threads) {
        auto made = std::make_unique<Fiber>();
        made->thread = &thread;
        made->fiber = boost::context::fiber([fiber = made.get()](boost::context::fiber&& explorer) {
            fiber->explorer = std::move(explorer);
            fiber->thread->body();
            fiber->ended = true;
            return std::move(fiber->explorer);
        });
        fibers_.push_back(std::move(made));
    }
    Fiber* last = nullptr;
    std::uint32_t preemptions = 0;
    for (;;) {
        std::vector<Fiber*> can = able();
        // The thread that had the last turn comes first: choosing another one is a preemption.
        const auto same = std::find(can.begin(), can.end(), last);
        const bool goes_on = same != can.end();
        if (goes_on) {
            std::iter_swap(can.begin(), same);
            if (preemptions == preemptions_max_) {
                can.resize(1);
            }
        }
        if (can.empty()) {
            if (std::all_of(fibers_.begin(), fibers_.end(), [](const auto& fiber) { return fiber->ended; })) {
                return true;
            }
            stuck("nobody can go on\n" + story());
            abandon();
            return false;
        }
        if (turns_.size() == kTurnsMax) {
            stuck("this has no end\n" + story());
            abandon();
            return false;
        }
        std::uint32_t chosen = 0;
        if (can.size() > 1) {
            if (at_ == choices_.size()) {
                choices_.push_back({0, static_cast<std::uint32_t>(can.size())});
            }
            if (choices_[at_].of != can.size()) {
                throw std::logic_error("a run that is not what it was before:\n" + story());
            }
            chosen = choices_[at_++].taken;
        }
        Fiber& next = *can[chosen];
        preemptions += goes_on && &next != last;
        last = &next;
        turns_.push_back(next.thread->name + ": " + next.where);
        next.done = nullptr;
        for (const auto& fiber : fibers_) {
            fiber->yields = false;  // another thread has had a turn
        }
        running_ = &next;
        current_ = this;
        next.fiber = std::move(next.fiber).resume();
        current_ = nullptr;
        running_ = nullptr;
    }
}

// A thread that has found nothing to do goes on only if no other thread can.
std::vector<Explorer::Fiber*> Explorer::able() {
    std::vector<Fiber*> can;
    std::vector<Fiber*> idle;
    for (const auto& fiber : fibers_) {
        if (!fiber->ended && (fiber->done == nullptr || (*fiber->done)())) {
            (fiber->yields ? idle : can).push_back(fiber.get());
        }
    }
    return can.empty() ? idle : can;
}

std::string Explorer::story() const {
    std::string all;
    for (const std::string& turn : turns_) {
        all += "  " + turn + "\n";
    }
    for (const auto& fiber : fibers_) {
        all += "now " + fiber->thread->name + (fiber->ended ? " has ended" : std::string(" is at: ") + fiber->where) +
               "\n";
    }
    return all;
}

void Explorer::leave() {
    Fiber& self = *running_;
    self.explorer = std::move(self.explorer).resume();
}

void Explorer::point(const char* where) {
    running_->where = where;
    leave();
}

void Explorer::yield() {
    running_->where = "goes on";
    running_->yields = true;
    leave();
}

void Explorer::wait(const char* where, const std::function<bool()>& done) {
    running_->where = where;
    running_->done = &done;
    leave();
}

}  // namespace pollcore::sim
