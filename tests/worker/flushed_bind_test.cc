// A bind that is flushed: the device may have carried it out, so nobody knows the window's key.
#include <gtest/gtest.h>

#include "pair_fixture.hpp"

namespace pollcore::testing {
namespace {

using FlushedBind = WorkerPairTest;

// The simulation met the window of type 1 under a key that the device did not know any more.
TEST_F(FlushedBind, LeavesAWindowToBeMadeAnew) {
    for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
        world = std::make_unique<SteppedWorld>();
        std::tie(a, b) = world->pair({}, {.rnr_retry = 7});
        region = &world->register_memory(memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
        const MrHandle bindable = world->make_bindable(*region);
        SteppedWorld::Window& window = world->add_window(type);
        WorkRequest unanswered = write(1);
        unanswered.opcode = Opcode::send;
        const WorkRequest bind{.tag = 2,
                               .bind = {window.end.handle, bindable, 256},
                               .remote_addr = reinterpret_cast<std::uintptr_t>(memory.data()),
                               .bind_access = kWindowWrite,
                               .rkey = next_rkey(window.mw->rkey),
                               .qp = a->handle(),
                               .opcode = Opcode::bind_mw,
                               .flags = kSignaled};
        ASSERT_EQ(world->session().try_submit(unanswered), Refusal::none);
        ASSERT_EQ(world->session().try_submit(bind), Refusal::none);
        world->step(20);
        EXPECT_FALSE(window.end.lost.load());
        world->to_error(*a);
        const auto completions = world->await(2);
        ASSERT_EQ(completions.size(), 2u);
        EXPECT_EQ(completions[1].tag, 2u);
        EXPECT_EQ(completions[1].status, Status::wr_flush_err);
        EXPECT_TRUE(window.end.lost.load());
    }
}

}  // namespace
}  // namespace pollcore::testing
