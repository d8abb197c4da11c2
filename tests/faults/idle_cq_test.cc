// CQs are created and destroyed with the queue pairs that need them, because a worker polls every CQ that exists.
#include <vector>

#include <gtest/gtest.h>

#include "faults_fixture.hpp"

namespace pollcore::testing {
namespace {

constexpr std::uint32_t kQueuePairs = 40;

class IdleCqs : public Faults {
protected:
    std::uint64_t cqs() { return runtime.control_counters().completion_queues.value(); }
    void expect_cqs(std::uint64_t wanted) {
        eventually("the CQs that are left", [&] { return cqs() == wanted; });
    }
    /// Creates so many queue pairs that one CQ does not have room for all of them.
    std::vector<QueuePair> peak(bool separate_cqs = false) {
        QueuePairOptions options = shape();
        options.separate_cqs = separate_cqs;
        options.shares.front().send_depth = options.recv_depth = 128;
        std::vector<QueuePair> qps;
        for (std::uint32_t i = 0; i < kQueuePairs; ++i) {
            qps.push_back(runtime.create_queue_pair(options));
        }
        return qps;
    }
};

TEST_P(IdleCqs, GoWithTheirLastQueueButOne) {
    std::vector<QueuePair> qps = peak();
    eventually("a peak", [&] { return cqs() > 2; });
    qps.clear();
    expect_cqs(1);
    connect_pair();
    submit(recv(1, 64));
    submit(send(2, 8));
    EXPECT_EQ(await(2).size(), 2u);
    expect_cqs(1);
}

TEST_P(IdleCqs, StayWhileAQueueOfEitherKindIsThere) {
    connect_pair();
    std::vector<QueuePair> qps = peak(true);
    eventually("a peak", [&] { return cqs() > 3; });
    qps.erase(qps.begin(), qps.end() - 1);  // the remaining queue pair keeps two CQs
    expect_cqs(3);
    submit(recv(1, 64));
    submit(send(2, 8));
    EXPECT_EQ(await(2).size(), 2u);
    qps.clear();
    expect_cqs(1);
}

TEST_P(IdleCqs, GoWhenTheQueuePairThatTheyWereOpenedForIsNotMade) {
    connect_pair();
    expect_cqs(1);
    QueuePairOptions options = shape();
    options.separate_cqs = true;
    device.inject({.kind = Kind::create_qp, .error = ENOMEM});
    expect_planned_error(ENOMEM, [&] { (void)runtime.create_queue_pair(options); });
    expect_cqs(1);
}

TEST_P(IdleCqs, OfALostDeviceAllGo) {
    std::vector<QueuePair> qps = peak();
    eventually("a peak", [&] { return cqs() > 2; });
    device.remove();
    qps.clear();
    expect_cqs(0);
}

INSTANTIATE_TEST_SUITE_P(Habits, IdleCqs, ::testing::ValuesIn(kProfiles), name_of);

}  // namespace
}  // namespace pollcore::testing
