// Before a burst to many queue pairs, the worker prefetches the provider's memory of each queue pair. That memory may
// vanish while the control thread changes or destroys the queue pair.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kMany = 50;

class ProviderLinesTest : public WorkerFixture {
protected:
    ProviderLinesTest()
        : pages_(static_cast<std::byte*>(
              ::mmap(nullptr, kMany * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        EXPECT_NE(static_cast<void*>(pages_), MAP_FAILED);
        make({.provider_lines = lines(0)});
        qps_.push_back(a);
        while (qps_.size() < kMany) {
            qps_.push_back(pair({.provider_lines = lines(qps_.size())}).first);
        }
        EXPECT_EQ(access(0, PROT_NONE), 0);
    }
    ~ProviderLinesTest() override {
        world.reset();
        ::munmap(pages_, kMany * kPage);
    }
    [[nodiscard]] SendQueueLines lines(std::size_t i) const {
        return {reinterpret_cast<const std::uint32_t*>(pages_ + i * kPage), pages_, 64};
    }
    int access(std::size_t i, int protection) { return ::mprotect(pages_ + i * kPage, kPage, protection); }
    void submit_to_all() {
        for (const Qp* qp : qps_) {
            submit(write(7, {.qp = qp}));
        }
    }

    std::byte* pages_;
    std::vector<Qp*> qps_;
};
using ProviderLinesDeathTest = ProviderLinesTest;

// Shows that the other tests of this file would notice a read.
TEST_F(ProviderLinesDeathTest, AreReadOfOneThatIsReady) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // the style is needed because this process has other threads
    submit_to_all();
    EXPECT_DEATH(world->step(), "");
}

TEST_F(ProviderLinesTest, AreNotReadOfOneThatIsParked) {
    world->proxy.park(a->handle());
    submit_to_all();
    world->step(20);
    ASSERT_EQ(access(0, PROT_READ), 0);
    world->proxy.unpark(a->handle(), QpState::ready, Status::success);
    EXPECT_EQ(step_until(kMany).size(), std::size_t{kMany});
}

TEST_F(ProviderLinesTest, AreNotReadOfOneThatIsClosed) {
    submit(write(1));
    const QpHandle closed = a->handle();
    EXPECT_TRUE(world->close(*a));
    WorkRequest late = write(2, {.qp = qps_[1]});
    qps_.erase(qps_.begin());
    RingProducer<WorkRequest> ring = world->raw();
    ASSERT_EQ(ring.reserve(2), 2u);
    late.qp = closed;
    ring.write(0, late);
    ring.write(1, write(3, {.qp = qps_[0]}));
    ring.commit(2);
    world->step(20);
    EXPECT_EQ(world->worker.counters().refused_requests.value(), 1u);
}

}  // namespace
}  // namespace pollcore::testing
