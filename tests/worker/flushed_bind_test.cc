// A bind that is flushed. The device may have executed the bind all the same, so nobody knows the window's key.
#include <gtest/gtest.h>

#include "worker_fixture.hpp"

namespace pollcore::testing {
namespace {

using FlushedBind = WorkerFixture;

// Bug found by the simulation: a window of type 1 had a key that the device did not know.
TEST_F(FlushedBind, LeavesAWindowToBeMadeAnew) {
    for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
        make_world();
        world->add_session();
        world->add_cq();
        pair({}, {}, {.rnr_retry = 7});
        Buffer& memory = buffer(8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
        SteppedWorld::Window& window = world->add_window(type);
        submit(send(1));  // the peer has posted no receive for this message
        submit(bind(2, *a, window, memory, world->make_bindable(*memory.mr)));
        world->step(20);
        EXPECT_FALSE(window.end->lost());
        world->to_error(*a);
        const auto completions = world->await(2);
        ASSERT_EQ(completions.size(), 2u);
        EXPECT_EQ(completions[1].tag, 2u);
        EXPECT_EQ(completions[1].status, Status::wr_flush_err);
        EXPECT_TRUE(window.end->lost());
    }
}

}  // namespace
}  // namespace pollcore::testing
