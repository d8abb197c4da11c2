#include "control/stall_watch.hpp"

#include <algorithm>
#include <iterator>

namespace pollcore {

StallWatch::StallWatch(const std::vector<Watched>& workers) {
    for (const Watched& worker : workers) {
        workers_.push_back(
            {.sampler = ThreadSampler(worker.thread), .log = worker.log, .next = worker.log->count(), .before = {}});
        // A stall may come before the first look.
        if (const auto counts = workers_.back().sampler.sample(ThreadSampler::Cpu::again)) {
            workers_.back().before.push_back({0, *counts});
        }
    }
}

// If no sample is older than the stall, the oldest one has to do.
const StallWatch::Sample& StallWatch::last_before(const Worker& worker, std::uint64_t time) noexcept {
    const auto after = std::find_if(worker.before.begin(), worker.before.end(),
                                    [&](const Sample& sample) { return sample.at > time; });
    return after == worker.before.begin() ? *after : *std::prev(after);
}

void StallWatch::look(const std::function<std::uint64_t()>& clock, const std::function<void(const Found&)>& take) {
    const bool cpu_too = looks_++ % kLooksPerCpuSample == 0;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        Worker& worker = workers_[i];
        const bool news = worker.log->count() != worker.next;
        const auto counts =
            worker.sampler.sample(cpu_too || news ? ThreadSampler::Cpu::again : ThreadSampler::Cpu::as_read);
        if (!counts) {
            continue;  // the thread has not begun, or has ended
        }
        worker.next = worker.log->take_from(worker.next, [&](const StallLog::Stall& stall) {
            if (!worker.before.empty()) {
                take({i, stall, counts->since(last_before(worker, stall.began).counts)});
            }
        });
        // The time is later than the sample: a stall that begins in between gets the sample before this one.
        worker.before.push_back({clock(), *counts});
        if (worker.before.size() > kSamples) {
            worker.before.pop_front();
        }
    }
}

}  // namespace pollcore
