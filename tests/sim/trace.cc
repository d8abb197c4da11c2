#include "sim/trace.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace pollcore::sim {

std::string Trace::words(const Event& event) {
    return fmt::format("{:6}  {:12.3f} us  {:<16} {}", event.step, static_cast<double>(event.now_ns) / 1000,
                       *event.thread, fmt::format(fmt::runtime(event.text), event.a, event.b, event.c, event.word));
}

std::vector<std::string> Trace::last(std::size_t most) const {
    std::vector<std::string> lines;
    const std::uint64_t kept = std::min<std::uint64_t>({count_, kKept, most});
    for (std::uint64_t i = count_ - kept; i < count_; ++i) {
        lines.push_back(words(events_[i % kKept]));
    }
    return lines;
}

}  // namespace pollcore::sim
