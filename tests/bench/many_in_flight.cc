// Measures many operations in flight through a worker on another CPU, and compares them with an exchange of only their
// bytes.
#include <array>
#include <stdexcept>

#include "arena.hpp"
#include "base/clock.hpp"
#include "rings.hpp"
#include "running.hpp"

namespace pollcore::bench {
namespace {

constexpr std::size_t kBurst = 32;
using Burst = std::array<WorkRequest, kBurst>;

std::size_t at_once(Session& session, const Burst& requests) noexcept {
    return session.try_submit(requests).accepted;
}
std::size_t one_by_one(Session& session, const Burst& requests) noexcept {
    std::size_t accepted = 0;
    while (accepted < kBurst && session.try_submit(requests[accepted]) == Refusal::none) {
        ++accepted;
    }
    return accepted;
}

constexpr std::uint64_t kInFlight = 16 * kBurst;

/// Cycles that the application's thread has spent since this object was made.
struct Spent {
    std::uint64_t began = cycles_now();
    std::uint64_t submitting = 0;
    std::uint64_t polling = 0;  ///< spent in polls that found completions

    /// Returns cycles per operation, in the order of the columns of many().
    [[nodiscard]] std::vector<double> per_operation(std::uint64_t now, std::uint64_t completed) const {
        const auto per = [&](std::uint64_t cycles) {
            return static_cast<double>(cycles) / static_cast<double>(completed);
        };
        return {per(now - began), per(submitting), per(polling), per(submitting + polling)};
    }
};

/// Keeps kInFlight operations in flight. Returns the application thread's cycles per operation: in the complete loop,
/// in submissions, in polls that found completions, and in submissions and these polls together.
template <class Submit>
std::vector<double> many_in_flight(const Setting& setting, Submit submit,
                                   StatisticsConfig::Segment segment = StatisticsConfig::Segment::off) {
    Running running(setting.cpus, segment);
    Session& session = running.session();
    Burst requests;
    requests.fill(running.request(0));
    std::array<Completion, kBurst> completions;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    Spent spent;
    const std::uint64_t until = spent.began + cycles_from(setting.time);
    std::uint64_t now = spent.began;
    while (now < until || completed < submitted) {
        if (now < until && submitted - completed < kInFlight) {
            for (WorkRequest& request : requests) {
                request.tag = submitted++;
            }
            const std::uint64_t before = cycles_now();
            const std::size_t accepted = submit(session, requests);
            spent.submitting += cycles_now() - before;
            if (accepted != kBurst) {
                throw std::runtime_error("a request was refused where there is room");
            }
        }
        const std::uint64_t before = cycles_now();
        const std::size_t n = session.poll(completions);
        now = cycles_now();
        if (n > 0) {
            spent.polling += now - before;
        }
        for (std::size_t i = 0; i < n; ++i) {
            if (completions[i].tag != completed++ || !completions[i].ok()) {
                throw std::runtime_error("something else completed than what was submitted");
            }
        }
    }
    return spent.per_operation(now, completed);
}

/// Exchanges as many bytes in each direction as many_in_flight(), with only plain stores and loads. An index publishes
/// the items after every 256 items. No runtime can be cheaper.
std::vector<double> exchanged(const Setting& setting) {
    using Down = StreamLimit<sizeof(WorkRequest), 4096>;
    using Up = StreamLimit<sizeof(Completion), 4096>;
    auto* const memory = static_cast<std::byte*>(arena(1u << 20));
    Down down(memory);
    Up up(memory + (1u << 19));
    std::vector<double> result;
    Differences wrong_here;
    Differences wrong_there;
    alignas(2 * kCacheLine) std::atomic<bool> over{false};
    run_pair(
        setting.cpus,
        [&] {
            Down::Writer requests(down);
            Up::Reader completions(up);
            std::uint64_t submitted = 0;
            std::uint64_t completed = 0;
            Differences wrong;
            Spent spent;
            const std::uint64_t until = spent.began + cycles_from(setting.time);
            std::uint64_t now = spent.began;
            while (now < until) {
                if (submitted - completed < kInFlight) {
                    const std::uint64_t before = cycles_now();
                    submitted += requests.push<kBurst>(submitted);
                    spent.submitting += cycles_now() - before;
                }
                const std::uint64_t before = cycles_now();
                const std::size_t n = completions.pop<kBurst>(completed, wrong);
                now = cycles_now();
                spent.polling += n > 0 ? now - before : 0;
                completed += n;
            }
            over.store(true, std::memory_order_release);
            wrong_here = wrong;
            result = spent.per_operation(now, completed);
        },
        [&] {
            Down::Reader requests(down);
            Up::Writer completions(up);
            std::uint64_t taken = 0;
            std::uint64_t answered = 0;
            Differences wrong;
            while (!over.load(std::memory_order_acquire)) {
                taken += requests.pop<kBurst>(taken, wrong);
                if (answered < taken) {
                    answered += completions.push<kBurst>(answered);
                }
            }
            wrong_there = wrong;
        });
    if (wrong_here.any() || wrong_there.any()) {
        throw std::runtime_error("the limit delivered something that was not written");
    }
    return result;
}

Measurement many(const char* row, std::function<std::vector<double>()> once) {
    return {
        .table = "512 in flight through a worker on another CPU, device that completes at once, cycles per operation",
        .row = row,
        .columns = {"all", "application: submit", "application: poll", "application: both"},
        .once = std::move(once),
        .between_cpus = true};
}

}  // namespace

std::vector<Measurement> bursts(const Setting& setting) {
    return {many("limit: 64 B there and 32 B back", [setting] { return exchanged(setting); }),
            many("submitted in bursts of 32", [setting] { return many_in_flight(setting, at_once); }),
            many("submitted in bursts of 32, with a statistics segment",
                 [setting] { return many_in_flight(setting, at_once, StatisticsConfig::Segment::on); })};
}

std::vector<Measurement> singles(const Setting& setting) {
    return {many("submitted one by one", [setting] { return many_in_flight(setting, one_by_one); })};
}

}  // namespace pollcore::bench
