// Random programs of verbs have equal results on a software device and through libpollcore-verbs.so: see
// random_program.hpp.
//
// POLLCORE_RANDOM_PROGRAMS is the number of programs (300), POLLCORE_RANDOM_SEED the seed of the first (1).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "random_program.hpp"
#include "verbs_fixture.hpp"

namespace pollcore::test {
namespace {

TEST(RandomPrograms, HaveTheSameResultsDirectlyAndServed) {
    const auto programs = std::strtoull(setting("POLLCORE_RANDOM_PROGRAMS", "300"), nullptr, 10);
    const auto first = std::strtoull(setting("POLLCORE_RANDOM_SEED", "1"), nullptr, 10);
    constexpr int kCalls = 60;
    DirectWay direct;
    ServedWay served(setting("POLLCORE_TEST_VERBS", ""));
    std::uint64_t completions = 0;
    std::uint64_t failed = 0;
    std::uint64_t refused = 0;
    int different = 0;
    for (std::uint64_t seed = first; seed < first + programs && different < 5; ++seed) {
        RandomProgram program(direct, served, seed);
        try {
            program.run(kCalls);
        } catch (const Difference& difference) {
            ++different;
            std::string calls;
            for (const std::string& call : program.calls()) {
                calls += call + "\n";
            }
            ADD_FAILURE() << "POLLCORE_RANDOM_SEED=" << seed << " POLLCORE_RANDOM_PROGRAMS=1\n"
                          << calls << difference.what();
        }
        completions += program.completions();
        failed += program.failed_completions();
        refused += program.refused_calls();
    }
    std::printf("%llu programs: %llu completions, %llu of them failed; %llu calls were refused\n",
                static_cast<unsigned long long>(programs), static_cast<unsigned long long>(completions),
                static_cast<unsigned long long>(failed), static_cast<unsigned long long>(refused));
    // The programs do something.
    EXPECT_GT(completions - failed, programs * 5);
    EXPECT_GT(failed, programs);
    EXPECT_GT(refused, programs);
}

}  // namespace
}  // namespace pollcore::test
