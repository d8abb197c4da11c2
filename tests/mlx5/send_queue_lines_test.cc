// Tests the address of libmlx5's next WQE. A worker prefetches this memory.
#include <array>
#include <chrono>
#include <cstring>

#include <gtest/gtest.h>

#include "device/verbs/verbs_device.hpp"
#include "give_way.hpp"
#include "mlx5_fixture.hpp"
#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

constexpr std::chrono::seconds kPatience{60};  // only ends a test that hangs

TEST(SendQueueLinesTest, TheNextRequestIsWrittenThere) {
    (void)mlx5_config();  // if the model is missing, says so and ends the program
    SteppedWorld world({.open = [] { return VerbsDevice::open("mlx5_0", 1); }});
    world.add_session();
    world.add_cq();
    SteppedWorld::Qp& qp = world.add_qp();
    world.connect(qp, qp);
    SteppedWorld::Buffer& memory = world.add_buffer(4096);
    const SendQueueLines& lines = qp.end->provider_lines();
    ASSERT_TRUE(lines.known());
    const std::byte* const first = lines.next_block();
    std::uint64_t blocks = 0;
    bool wrapped = false;
    for (std::uint64_t tag = 0; tag < 300; ++tag) {
        const std::byte* const next = lines.next_block();
        std::array<std::byte, 16> before;
        std::memcpy(before.data(), next, before.size());
        WorkRequest write = SteppedWorld::write(tag, qp, *memory.mr);
        ASSERT_EQ(world.session().try_submit(write), Refusal::none);
        std::size_t completed = 0;
        // The model's NIC may run in its own thread.
        for (const auto until = std::chrono::steady_clock::now() + kPatience;
             completed == 0 && std::chrono::steady_clock::now() < until; test::give_way()) {
            world.step();
            completed = world.poll().size();
        }
        ASSERT_EQ(completed, 1u);
        EXPECT_NE(std::memcmp(before.data(), next, before.size()), 0)
            << "request " << tag << " did not change the bytes at next_block()";
        wrapped = wrapped || lines.next_block() == first;
        EXPECT_TRUE(lines.next_block() == next + SendQueueLines::kBlock || lines.next_block() == first);
        blocks += lines.next_block() != next;
    }
    EXPECT_EQ(blocks, 300u);
    EXPECT_TRUE(wrapped);
}

TEST(SendQueueLinesTest, OfTheSoftwareDeviceNothingIsKnown) {
    SteppedWorld world;
    world.add_session();
    world.add_cq();
    EXPECT_FALSE(world.add_qp().end->provider_lines().known());
}

}  // namespace
}  // namespace pollcore::testing
