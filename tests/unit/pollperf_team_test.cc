// The threads of a measurement: all of them end, also if one of them fails.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "pollperf/measure/team.hpp"

namespace pollcore::perf {
namespace {

TEST(PollperfTeam, EachMemberWorksOnceAndTheFirstOneIsTheCaller) {
    for (const unsigned threads : {1u, 2u, 7u}) {
        std::vector<std::atomic<unsigned>> calls(threads);
        std::vector<std::thread::id> ids(threads);
        run_team(threads, [&](unsigned index, std::barrier<>&) {
            ++calls[index];
            ids[index] = std::this_thread::get_id();
        });
        for (unsigned index = 0; index < threads; ++index) {
            EXPECT_EQ(calls[index], 1u);
            EXPECT_EQ(ids[index] == std::this_thread::get_id(), index == 0);
        }
    }
}

TEST(PollperfTeam, MembersMeetAtTheBarrier) {
    constexpr unsigned kThreads = 4;
    std::atomic<unsigned> steps{0};
    run_team(kThreads, [&](unsigned, std::barrier<>& together) {
        for (unsigned step = 1; step <= 100; ++step) {
            ++steps;
            together.arrive_and_wait();
            EXPECT_EQ(steps, step * kThreads);
            together.arrive_and_wait();
        }
    });
}

TEST(PollperfTeam, AMemberThatEndsIsNotWaitedFor) {
    std::atomic<unsigned> met{0};
    run_team(3, [&](unsigned index, std::barrier<>& together) {
        // The members leave one after the other.
        for (unsigned step = 0; step < 10 * (index + 1); ++step) {
            together.arrive_and_wait();
            ++met;
        }
    });
    EXPECT_EQ(met, 60u);
}

TEST(PollperfTeam, AFailureOfAnyMemberIsThrownWhenAllHaveEnded) {
    constexpr unsigned kThreads = 3;
    for (unsigned failing = 0; failing < kThreads; ++failing) {
        std::atomic<unsigned> ended{0};
        try {
            run_team(kThreads, [&](unsigned index, std::barrier<>& together) {
                together.arrive_and_wait();
                if (index == failing) {
                    throw std::runtime_error("member " + std::to_string(index));
                }
                together.arrive_and_wait();  // the failed member does not come
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                ++ended;
            });
            ADD_FAILURE() << failing;
        } catch (const std::runtime_error& error) {
            EXPECT_EQ(error.what(), "member " + std::to_string(failing));
        }
        EXPECT_EQ(ended, kThreads - 1);
    }
}

TEST(PollperfTeam, OfSeveralFailuresTheFirstIsThrown) {
    for (unsigned first = 0; first < 4; ++first) {
        try {
            run_team(4, [&](unsigned index, std::barrier<>& together) {
                if (index == first) {
                    throw std::runtime_error("first");
                }
                together.arrive_and_wait();  // returns when the first one has failed
                throw std::runtime_error("later");
            });
            ADD_FAILURE() << first;
        } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "first");
        }
    }
}

TEST(PollperfTeam, AFailureThatIsNoExceptionClassIsThrownToo) {
    EXPECT_THROW(run_team(2,
                          [](unsigned index, std::barrier<>&) {
                              if (index == 1) {
                                  throw 42;
                              }
                          }),
                 int);
}

}  // namespace
}  // namespace pollcore::perf
