#include <vector>

#include <gtest/gtest.h>

#include "hca_faults.hpp"

namespace mlx5_model {
namespace {

constexpr std::uint32_t kQp = 7;
constexpr std::uint32_t kOther = 8;

std::vector<Fate> fates(FaultPlan& plan, int count) {
    std::vector<Fate> out;
    for (int i = 0; i < count; ++i) {
        out.push_back(plan.next_fate(kQp, true));
    }
    return out;
}

TEST(Faults, WithoutAPlanAllArrives) {
    FaultPlan plan;
    EXPECT_EQ(fates(plan, 100), std::vector<Fate>(100, Fate::arrives));
    EXPECT_FALSE(plan.next_send_error(kQp));
    EXPECT_FALSE(plan.next_receive_error(kQp));
}

TEST(Faults, APlanIsOfOneQueuePairAndEnds) {
    FaultPlan plan;
    plan.meet(kQp, Fate::is_lost, 2);
    EXPECT_EQ(plan.next_fate(kOther, true), Fate::arrives);
    EXPECT_EQ(fates(plan, 3), (std::vector{Fate::is_lost, Fate::is_lost, Fate::arrives}));
}

TEST(Faults, ALaterPlanTakesThePlaceOfAnEarlierOne) {
    FaultPlan plan;
    plan.meet(kQp, Fate::is_lost, 5);
    plan.meet(kQp, Fate::arrives_twice, 1);
    EXPECT_EQ(fates(plan, 2), (std::vector{Fate::arrives_twice, Fate::arrives}));
    plan.meet(kQp, Fate::is_lost, 5);
    plan.meet(kQp, Fate::is_lost, 0);
    EXPECT_EQ(plan.next_fate(kQp, true), Fate::arrives);
}

TEST(Faults, APlanGoesBeforeChance) {
    FaultPlan plan;
    plan.on_the_wire({1024, 0, 0, 1});
    plan.meet(kQp, Fate::answer_is_lost, 1);
    EXPECT_EQ(fates(plan, 3), (std::vector{Fate::answer_is_lost, Fate::is_lost, Fate::is_lost}));
}

TEST(Faults, ChanceTakesNothingFromTheUnreliableAndAPlanDoes) {
    FaultPlan plan;
    plan.on_the_wire({1024, 0, 0, 1});
    EXPECT_EQ(plan.next_fate(kQp, false), Fate::arrives);
    plan.meet(kQp, Fate::is_lost, 1);
    EXPECT_EQ(plan.next_fate(kQp, false), Fate::is_lost);
}

TEST(Faults, ChanceIsRepeatable) {
    FaultPlan plan;
    plan.on_the_wire({100, 100, 100, 42});
    const std::vector<Fate> first = fates(plan, 1000);
    plan.on_the_wire({100, 100, 100, 42});
    EXPECT_EQ(fates(plan, 1000), first);
    plan.on_the_wire({100, 100, 100, 43});
    EXPECT_NE(fates(plan, 1000), first);
}

TEST(Faults, ChanceHasItsShares) {
    FaultPlan plan;
    plan.on_the_wire({64, 128, 256, 1});
    int met[4] = {};
    for (const Fate fate : fates(plan, 10240)) {
        ++met[static_cast<int>(fate)];
    }
    EXPECT_NEAR(met[static_cast<int>(Fate::is_lost)], 640, 128);
    EXPECT_NEAR(met[static_cast<int>(Fate::answer_is_lost)], 1280, 160);
    EXPECT_NEAR(met[static_cast<int>(Fate::arrives_twice)], 2560, 200);
    plan.on_the_wire({});
    EXPECT_EQ(fates(plan, 100), std::vector<Fate>(100, Fate::arrives));
}

TEST(Faults, AnErrorComesOnceAndInItsPlace) {
    FaultPlan plan;
    plan.fail_send(kQp, 2, {0x13, 0x77});
    EXPECT_FALSE(plan.next_send_error(kOther));
    EXPECT_FALSE(plan.next_receive_error(kQp));
    EXPECT_FALSE(plan.next_send_error(kQp));
    EXPECT_FALSE(plan.next_send_error(kQp));
    const auto error = plan.next_send_error(kQp);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->syndrome, 0x13);
    EXPECT_EQ(error->vendor_syndrome, 0x77);
    EXPECT_FALSE(plan.next_send_error(kQp));
    plan.fail_receive(kQp, 0, {4, 0});
    EXPECT_FALSE(plan.next_send_error(kQp));
    EXPECT_TRUE(plan.next_receive_error(kQp));
}

TEST(Faults, AQueuePairsPlansEndWithIt) {
    FaultPlan plan;
    plan.meet(kQp, Fate::is_lost, 1);
    plan.fail_send(kQp, 0, {1, 1});
    plan.fail_receive(kQp, 0, {1, 1});
    plan.forget(kQp);
    EXPECT_EQ(plan.next_fate(kQp, true), Fate::arrives);
    EXPECT_FALSE(plan.next_send_error(kQp));
    EXPECT_FALSE(plan.next_receive_error(kQp));
}

}  // namespace
}  // namespace mlx5_model
