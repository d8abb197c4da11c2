#include <thread>

#include "hca_fabric.hpp"
#include "verbs_ends.hpp"

namespace mlx5_model {
namespace {

TEST(FabricTest, DevicesDifferInAllThatNamesThem) {
    ASSERT_GE(devices().size(), 2u);
    for (std::size_t i = 0; i < devices().size(); ++i) {
        const DeviceFacts& one = devices()[i];
        EXPECT_EQ(one.name, "mlx5_" + std::to_string(i));
        EXPECT_EQ(Fabric::get().hca(one.name)->facts().name, one.name);
        EXPECT_TRUE(Fabric::get().knows(one.gid));
        for (std::size_t j = 0; j < i; ++j) {
            const DeviceFacts& other = devices()[j];
            EXPECT_NE(one.file, other.file);
            EXPECT_NE(one.minor, other.minor);
            EXPECT_NE(one.node_guid, other.node_guid);
            EXPECT_NE(one.address, other.address);
            EXPECT_NE(std::memcmp(&one.gid, &other.gid, sizeof one.gid), 0);
        }
    }
    EXPECT_EQ(Fabric::get().hca("mlx5_99"), nullptr);
    EXPECT_FALSE(Fabric::get().knows({}));
}

TEST(FabricTest, AQueuePairIsFoundAtItsDevice) {
    Fabric& fabric = Fabric::get();
    std::uint32_t number = 0;
    {
        const End end;
        number = end.number();
        const std::lock_guard guard(fabric.lock);
        ASSERT_NE(fabric.find(devices()[0].gid, number), nullptr);
        EXPECT_EQ(fabric.find(devices()[0].gid, number), fabric.qp(number));
        EXPECT_EQ(fabric.find(devices()[1].gid, number), nullptr);
        EXPECT_EQ(fabric.find(devices()[0].gid, number + 1), nullptr);
    }
    const std::lock_guard guard(fabric.lock);
    EXPECT_EQ(fabric.qp(number), nullptr);
}

TEST(FabricTest, APlanEndsWithItsQueuePair) {
    std::uint32_t number = 0;
    {
        const End end;
        number = end.number();
        mlx5_model_lose_requests(number, 5);
    }
    Fabric& fabric = Fabric::get();
    const std::lock_guard guard(fabric.lock);
    EXPECT_EQ(fabric.faults.next_fate(number, true), Fate::arrives);
}

class Pace : public testing::Test {
protected:
    ~Pace() override { mlx5_model_set_pace("hand"); }
    /// Polls until there is a completion; does not step the NIC itself.
    static bool comes(const Cq& cq) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (std::chrono::steady_clock::now() < end) {
            if (End::poll(cq)) {
                return true;
            }
        }
        return false;
    }
};

TEST_F(Pace, OfPollsMovesTheNic) {
    mlx5_model_set_pace("poll");
    Pair pair;
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
    EXPECT_TRUE(End::poll(pair.here.send_cq));
    // Polls of an extended CQ run the NIC, too.
    ibv_cq_init_attr_ex attributes{};
    attributes.cqe = 10;
    ibv_cq_ex* const extended = ibv_create_cq_ex(pair.here.context.get(), &attributes);
    ASSERT_NE(extended, nullptr);
    ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
    ibv_poll_cq_attr none{};
    EXPECT_EQ(ibv_start_poll(extended, &none), ENOENT);
    mlx5_model_set_pace("hand");
    EXPECT_TRUE(End::poll(pair.here.send_cq)) << "the other queue's poll has moved it";
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(extended)), 0);
}

TEST_F(Pace, OfAThreadMovesTheNicWhileADeviceIsOpen) {
    mlx5_model_set_pace("thread");
    for (int i = 0; i < 2; ++i) {
        Pair pair;
        ASSERT_EQ(pair.here.post(IBV_WR_RDMA_WRITE, 1, {pair.here.part(0, 8)}, to_memory(pair.there, 0)), 0);
        EXPECT_TRUE(comes(pair.here.send_cq));
    }
}

using PaceDeathTest = Pace;
TEST_F(PaceDeathTest, OfAnotherNameIsRefused) {
    EXPECT_DEATH(mlx5_model_set_pace("fast"), "the pace is fast, not hand, poll or thread");
    EXPECT_DEATH(mlx5_model_remove("mlx5_99"), "the model has no device mlx5_99");
}

}  // namespace
}  // namespace mlx5_model
