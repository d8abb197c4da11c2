// I1 with large numbers: more than a million completions take each of the three ways to the application. No completion
// is lost, none comes twice, and all are in order. Of the tests that run in one process, only this one is large enough
// to find an error that occurs once in a million requests.
#include <array>
#include <cstdint>
#include <span>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

class WorkerConservation : public WorkerFixture {
protected:
    static constexpr std::uint64_t kCompletions = 1'100'000;  // for each way
    static constexpr std::uint32_t kBurst = 16;
    static constexpr int kStepsMax = 1000;

    WorkerConservation() { make({.shares = {{0, 2 * kBurst, kBurst}}}); }

    /// Submits the requests and polls until `wanted` completions have come, or until kStepsMax steps were made. Returns
    /// true if exactly `wanted` completions came, all were successes, and their tags are `tag`, tag + apart, tag + 2 *
    /// apart and so on.
    [[nodiscard]] bool carry_out(std::span<const WorkRequest> requests, std::uint32_t wanted, std::uint64_t tag,
                                 std::uint64_t apart) {
        Session& session = world->session();
        if (session.try_submit(requests).accepted != requests.size()) {
            return false;
        }
        std::array<Completion, 2 * kBurst> completions;
        std::uint32_t n = 0;
        for (int steps = 0; n < wanted && steps < kStepsMax; ++steps) {
            (void)world->step();
            const std::size_t more = session.poll(completions);
            for (std::size_t i = 0; i < more; ++i, ++n) {
                if (!completions[i].ok() || completions[i].tag != tag + n * apart) {
                    return false;
                }
            }
        }
        return n == wanted && session.poll(completions) == 0;
    }
    /// Submits requests in groups of `each`. Only the last request of a group is signaled, so each group has one
    /// completion. `at_once` groups are in flight at a time.
    void carry_out_all(std::uint32_t each, std::uint32_t at_once) {
        std::array<WorkRequest, 2 * kBurst> requests;
        const std::uint32_t n = each * at_once;
        for (std::uint64_t tag = 1; tag < kCompletions * each; tag += n) {
            for (std::uint32_t i = 0; i < n; ++i) {
                requests[i] = write(tag + i, {.flags = signaled_if((i + 1) % each == 0)});
            }
            ASSERT_TRUE(carry_out(std::span(requests).first(n), at_once, tag + each - 1, each))
                << "requests from number " << tag << " on";
        }
        const SessionFigures figures = world->session().figures();
        EXPECT_EQ(figures.in_flight(), 0u);
        EXPECT_EQ(figures.completed * each, figures.accepted);
        EXPECT_EQ(figures.retired, figures.accepted - figures.completed);
    }
    [[nodiscard]] std::uint64_t by_ring() const { return world->ends[0]->worker_end->completions_written(); }
};

TEST_F(WorkerConservation, NoneOfAMillionOrdinaryCompletionsIsLost) {
    carry_out_all(1, kBurst);
    EXPECT_GE(by_ring(), kCompletions);
}

// A signaled request that follows an unsignaled one is completed by the general way.
TEST_F(WorkerConservation, NoneOfAMillionGeneralCompletionsIsLost) {
    carry_out_all(2, kBurst);
    EXPECT_GE(by_ring(), kCompletions);
}

TEST_F(WorkerConservation, NoneOfAMillionAnswersInARequestsLineIsLost) {
    carry_out_all(1, 1);
    EXPECT_EQ(by_ring(), 0u);
}

}  // namespace
}  // namespace pollcore::testing
