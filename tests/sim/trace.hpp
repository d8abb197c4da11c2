// The events of a history, in words. Keeps the last ones; prints all of them when a history is replayed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scheduler.hpp"

namespace pollcore::sim {

class Trace {
public:
    /// If `print` is true, prints each event as it happens.
    Trace(const Scheduler& scheduler, bool print) : scheduler_(scheduler), print_(print), events_(kKept) {}

    /// `text` is a format string with up to three numbers ({0} to {2}) and a word ({3}). Text and word must have static
    /// lifetime. No addresses: a history has the same trace in every process.
    void add(const char* text, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0,
             std::string_view word = {}) {
        Event& event = events_[count_++ % kKept];
        event = {scheduler_.steps(), scheduler_.now_ns(), &scheduler_.running(), text, a, b, c, word};
        if (print_) {
            std::fputs((words(event) + "\n").c_str(), stdout);
        }
        for (const std::uint64_t number : {event.step, event.now_ns, a, b, c}) {
            digest_ = (digest_ ^ number) * 0x100000001b3;
        }
    }

    /// The last events, oldest first.
    [[nodiscard]] std::vector<std::string> last(std::size_t most) const;
    /// Digest of the numbers in all events so far.
    [[nodiscard]] std::uint64_t digest() const noexcept { return digest_; }

private:
    static constexpr std::size_t kKept = 256;

    struct Event {
        std::uint64_t step = 0;
        std::uint64_t now_ns = 0;
        const std::string* thread = nullptr;
        const char* text = "";
        std::uint64_t a = 0, b = 0, c = 0;
        std::string_view word{};
    };

    [[nodiscard]] static std::string words(const Event& event);

    const Scheduler& scheduler_;
    const bool print_;
    std::vector<Event> events_;
    std::uint64_t count_ = 0;
    std::uint64_t digest_ = 0xcbf29ce484222325;
};

}  // namespace pollcore::sim
