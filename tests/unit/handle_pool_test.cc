#include "control/handle_pool.hpp"

#include <gtest/gtest.h>

#include "pollcore/handle.hpp"

namespace pollcore {
namespace {

TEST(HandlePool, UsesFirstAgainWhatWasGivenBackFirst) {
    HandlePool<PoolHandle> pool(3);
    const PoolHandle first = *pool.take();
    const PoolHandle second = *pool.take();
    const PoolHandle third = *pool.take();
    EXPECT_FALSE(pool.take());
    pool.give_back(second);
    pool.give_back(first);
    pool.give_back(third);
    for (const PoolHandle was : {second, first, third}) {
        const PoolHandle again = *pool.take();
        EXPECT_EQ(again.index, was.index);
        EXPECT_EQ(again.generation, was.generation + 1);
    }
    EXPECT_FALSE(pool.take());
    pool.give_back(first);
    EXPECT_EQ(pool.take()->index, first.index) << "the list of free places was empty in between";
}

TEST(HandlePool, GivesNoHandleOfGenerationNone) {
    HandlePool<PoolHandle> pool(1);
    for (int i = 0; i < 0x10010; ++i) {
        const PoolHandle handle = *pool.take();
        ASSERT_NE(handle.generation, 0);
        pool.give_back(handle);
    }
}

}  // namespace
}  // namespace pollcore
